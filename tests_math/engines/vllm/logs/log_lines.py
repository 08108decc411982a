"""Renders vLLM's own message templates: the independent side of the log parser's tests."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

LOGS = Path(__file__).parents[4] / "fixtures" / "logs"
GIB = 2**30

#: Prefixes as they stand before a message in real logs; {} is the level and time of vLLM's logger.
PREFIXES = (
    "{}",
    "(EngineCore pid=16533) {}",
    "(EngineCore_DP0 pid=97) {}",
    "(VllmWorker rank=3 pid=1204) {}",
    "(Worker_TP0 pid=16634) {}",
    "\x1b[0;36m(EngineCore_0 pid=271)\x1b[0;0m {}",
    "\x1b[36m(RayWorkerWrapper pid=4711, ip=10.0.0.7)\x1b[0m {}",
    "vllm-1  | (EngineCore pid=97) {}",
    "2026-05-04T09:12:13.123456789Z stderr F (EngineCore pid=97) {}",
    "2026-05-04T09:12:13.123456789Z {}",
    "[pod/vllm-7c9d-x2x4z/vllm] {}",
    "May 04 09:12:13 spark vllm[1234]: (EngineCore pid=1301) {}",
    "2026-05-04T09:12:13+0000 spark vllm[1234]: {}",
    "[2026-05-04 09:12:13] {}",
    "vLLM STDOUT: {}",
    "[INFO ] PyProcess - W-210-model-stdout: #033[1;36m(VllmWorkerProcess pid=240)#033[0;0m {}",
    "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:05<00:00,  1.31s/it]\r{}",
    "Capturing CUDA graphs: 100%|██████████| 67/67 [00:20<00:00,  3.21it/s](EngineCore pid=97) {}",
)
HEADERS = (
    "INFO 05-04 09:12:13 [gpu_worker.py:298] ",
    "INFO 05-04 09:12:13.123 [v1/worker/gpu_worker.py:298] ",
    "DEBUG 05-04 09:12:13 [v1/worker/gpu_worker.py:298] ",
    "INFO 05-04 09:12:13 worker.py:267] ",
    "",
)


class Template(NamedTuple):
    """One message as vLLM's sources have it."""

    first: str
    last: str
    template: str
    fields: tuple[tuple[str, str], ...]
    refusal: str | None


class Rendered(NamedTuple):
    """A message with drawn values: the line, and the values in bytes or as they are."""

    text: str
    values: dict[str, tuple[str, Any]]
    refusal: str | None


@cache
def templates() -> tuple[Template, ...]:
    """fixtures/logs/messages.json."""
    document = json.loads((LOGS / "messages.json").read_text(encoding="utf-8"))
    return tuple(
        Template(each["first"], each["last"], each["template"], tuple(map(tuple, each["fields"])), each.get("refusal"))
        for each in document["messages"]
    )


_SIZE = st.integers(0, 2000 * GIB)
_SIGNED = st.integers(-50 * GIB, 2000 * GIB)
_PLACE = re.compile(r"%(?:\.\d)?[0-9]*[dsf]|%%|\{[^{}]*\}")
_DRAWS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("f2", "f4", "gib", "raw"), _SIZE),
    **dict.fromkeys(("f2s", "gibs"), _SIGNED),
    "bytes": st.integers(-(10**12), 10**13),
    "int": st.integers(0, 10**9),
    "comma": st.integers(0, 10**10),
    **dict.fromkeys(("u", "u2", "u4", "u6"), st.integers(1, 10_000).map(lambda n: n / 10_000)),
    **dict.fromkeys(("s0", "s2", "s6", "x2", "p2"), st.floats(0, 1e5)),
}


def shown(kind: str, value: Any) -> str:
    """A value as vLLM's format prints it."""
    formats: dict[str, str] = {"f2": ".2f", "f2s": ".2f", "f4": ".4f"}
    if kind in formats:
        return format(value / GIB, formats[kind])
    if kind in ("gib", "gibs"):
        return f"{round(value / GIB, 2)}"
    if kind == "raw":
        return f"{value / GIB:.10f}"
    if kind == "comma":
        return f"{value:,}"
    if kind in ("bytes", "int", "u"):
        return str(value)
    return format(value, f".{kind[1:]}f")


@st.composite
def rendered(draw: st.DrawFn, template: Template) -> Rendered:
    """A template with values."""
    values: dict[str, tuple[str, Any]] = {}
    texts: list[str] = []
    for name, kind in template.fields:
        if name == "-":
            texts.append(kind)
            continue
        value = draw(_DRAWS[kind])
        values[name] = (kind, value)
        texts.append(shown(kind, value))
    rest = iter(texts)
    text = _PLACE.sub(lambda match: "%" if match[0] == "%%" else next(rest), template.template)
    assert next(rest, None) is None, template.template
    return Rendered(text, values, template.refusal)


any_message = st.sampled_from(templates()).flatmap(rendered)


@st.composite
def lines(draw: st.DrawFn, message: st.SearchStrategy[Rendered] = any_message) -> tuple[str, Rendered]:
    """A message as a line of a log, behind some prefix, with some line end."""
    one = draw(message)
    head = draw(st.sampled_from(PREFIXES)).format(draw(st.sampled_from(HEADERS)))
    if one.refusal:
        head += draw(st.sampled_from(["", "ValueError: "]))
    return head + one.text + draw(st.sampled_from(["\n", "\r\n", ""])), one
