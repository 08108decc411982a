"""Logs of real starts: figures equal what the engine itself held in memory."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.logs.checks import checks, differences
from membudget.engines.vllm.logs.compare import compare
from membudget.engines.vllm.logs.log import parse, parse_file, parse_stream
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.verdict import verdict
from membudget.model import build

pytestmark = pytest.mark.suite

LOGS = Path(__file__).parents[4] / "fixtures" / "logs"
EXPECTED: dict[str, Any] = json.loads((LOGS / "cpu" / "expected.json").read_text(encoding="utf-8"))["logs"]
ODD: dict[str, Any] = json.loads((LOGS / "odd" / "expected.json").read_text(encoding="utf-8"))
SIZING = sorted((LOGS / "sizing").glob("*.log"))

#: How each start ended; those not here started.
ENDS = {
    "0.32.0-err-kvbytes-100G": ("refused", "kv_allocation"),
    "0.32.0-err-maxlen-gemma3": ("refused", "max_model_len"),
    "0.32.0-err-override1": ("refused", "no_kv_memory"),
    "0.32.0-err-util0.01": ("refused", "kv_allocation"),
    "0.32.0-err-util0.99": ("refused", "free_memory"),
    "0.32.0-llama-num_gpu_blocks_override=8": ("refused", "max_model_len"),
    "0.32.0-llama-block_size=16": ("failed", ""),
    "0.32.0-llama-kv_cache_dtype=fp8": ("failed", ""),
}


def read(name: str) -> EngineLog:
    """The one engine of a captured log."""
    found = parse_file(str(LOGS / "cpu" / f"{name}.log"))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", EXPECTED)
def test_figures_equal_the_engines_own(name: str) -> None:
    """Tokens, concurrency and max_model_len in the log are those in the engine's cache_config."""
    log, wanted = read(name), EXPECTED[name]
    assert log.version == name.split("-")[0]
    if "tokens" in wanted:
        assert log.value("kv_tokens") == wanted["tokens"]
        times = log.get("max_concurrency")
        assert times is not None
        assert abs(float(times.value) - wanted["conc"]) <= times.half + 1e-9
        assert log.max_model_len == wanted["max_model_len"]
    chunked = log.setting("enable_chunked_prefill")
    if wanted.get("mnbt") and log.value("max_num_batched_tokens") is not None and chunked is not False:
        assert log.value("max_num_batched_tokens") == wanted["mnbt"]
    if "num_gpu_blocks_override" in wanted["kw"]:
        assert log.value("override_blocks") == wanted["kw"]["num_gpu_blocks_override"]
    if "kv_cache_memory_bytes" in wanted["kw"] and "error" not in wanted:
        assert log.setting("kv_cache_memory_bytes") == wanted["kw"]["kv_cache_memory_bytes"]
    assert log.setting("dtype") == "bfloat16"
    assert log.setting("device_config") == "cpu"


@pytest.mark.parametrize("name", EXPECTED)
def test_verdict(name: str) -> None:
    """Each start ended as the engine did: started, refused by a memory rule, or failed for another reason."""
    ended = verdict(read(name))
    assert (ended.status, ended.kind or "") == ENDS.get(name, ("started", ""))
    error = EXPECTED[name].get("error")
    if ended.status == "failed":
        assert ended.text.startswith(error[:60])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_does_not_contradict_itself(name: str) -> None:
    """No relation between the printed figures of a real start is off."""
    assert differences(read(name)) == []


def test_refusals_have_their_figures() -> None:
    """Each refusal gives the figures it prints, here as they stand in the log."""
    gib = 2**30
    maxlen = read("0.32.0-llama-num_gpu_blocks_override=8").refusals[0]
    assert maxlen.value("max_model_len") == 2048
    assert maxlen.value("estimated_max_model_len") == 896
    low = read("0.32.0-err-util0.99").refusals[0]
    assert low.value("free_memory") == round(14.85 * gib)
    assert low.value("total_memory") == round(16.34 * gib)
    assert low.value("utilization") == 0.99
    assert low.value("requested_memory") == round(16.17 * gib)
    negative = read("0.32.0-err-util0.01").refusals[0]
    assert negative.value("available_kv") == -round(0.31 * gib)
    assert negative.value("requested_memory") == round(0.16 * gib)
    autofit = read("0.32.0-err-override2-autofit")
    assert (autofit.value("autofit_from"), autofit.value("autofit_max_model_len")) == (8192, 512)


def test_the_cpu_identity_closes() -> None:
    """On the CPU: requested - used by the process = for the pool (4.9 - 0.47 = 4.43)."""
    log = read("0.32.0-auto-util0.3")
    found = {check.name: check.holds for check in checks(log)}
    assert found["identity"] is True
    assert found["requested"] is True


@pytest.mark.parametrize("path", SIZING, ids=lambda path: path.stem)
def test_older_versions_print_what_their_code_returned(path: Path) -> None:
    """0.8.5 to 0.26.0: the pool lines of each version's own code, beside the figures it returned."""
    text = path.read_text(encoding="utf-8")
    returned = json.loads(re.findall(r"^ORACLE (\{.*\})$", text, re.MULTILINE)[0])
    log = parse(text.splitlines(keepends=True))[0]
    printed = [int(each.replace(",", "")) for each in re.findall(r"KV cache size: ([\d,]+) tokens", text)]
    assert log.value("kv_tokens") == min(printed)
    times = log.get("max_concurrency")
    assert times is not None
    if "conc" in returned:
        assert abs(float(times.value) - returned["conc"]) <= times.half + 1e-9


@pytest.mark.parametrize("name", ODD["logs"])
def test_odd_flags(name: str) -> None:
    """Starts with flags nobody tuned for: each engine's figures, and all of them equal to the arithmetic."""
    found = parse_file(str(LOGS / "odd" / f"{name}.log"))
    assert len(found) == len(ODD["logs"][name])
    for log, wanted in zip(found, ODD["logs"][name], strict=True):
        assert (log.model, log.max_model_len) == (wanted["model"], wanted["max_model_len"])
        compared = compare(log, build(ODD["configs"][wanted["model"]], wanted["model"]))
        assert compared.checks
        assert [check for check in compared.checks if not check.holds] == []
        if "refused" in wanted:
            assert verdict(log).kind == wanted["refused"]
            assert log.value("estimated_max_model_len") == wanted["estimated_max_model_len"]
            continue
        assert verdict(log).status == "started"
        assert log.value("kv_tokens") == wanted["tokens"]
        times = log.get("max_concurrency")
        assert times is not None
        assert abs(float(times.value) - wanted["concurrency"]) <= times.half + 1e-9
        assert compared.pool is not None
        assert compared.pool.block_size == wanted["block_size"]
        assert compared.pool.num_blocks == pytest.approx(wanted["num_blocks"], rel=0.01)
        if log.setting("kv_cache_memory_bytes"):
            assert compared.pool.num_blocks == wanted["num_blocks"]


def test_line_numbers_and_raw_lines_are_those_of_the_file() -> None:
    """A figure points to its line, counted as editors count, and keeps the text."""
    path = LOGS / "cpu" / "0.32.0-serve.log"
    lines = path.read_text(encoding="utf-8").split("\n")
    log = parse_file(str(path))[0]
    for name in ("kv_tokens", "max_concurrency", "reserved_kv", "init_seconds"):
        figure = log.get(name)
        assert figure is not None
        assert figure.printed.removesuffix(" GiB") in lines[figure.line - 1]
        assert figure.raw == lines[figure.line - 1].strip()[:400]


@pytest.mark.parametrize("name", ["0.32.0-serve", "0.27.1-qwen3-next", "0.32.0-err-maxlen-gemma3"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("INFO ", "\x1b[32mINFO\x1b[0m "),
        lambda text: "".join(f"vllm-1  | {line}" for line in text.splitlines(keepends=True)),
        lambda text: "".join(f"2026-05-04T09:12:13.123456789Z stdout F {x}" for x in text.splitlines(keepends=True)),
        lambda text: "".join(f"May 04 09:12:13 spark vllm[77]: {line}" for line in text.splitlines(keepends=True)),
        lambda text: "".join(
            json.dumps({"log": line, "stream": "stderr", "time": "2026-05-04T09:12:13Z"}) + "\n"
            for line in text.splitlines(keepends=True)
        ),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("Triton", "Tri\udcfft\udc80n"),
    ],
    ids=["crlf", "colours", "compose", "cri", "journald", "docker json-file", "byte order mark", "invalid utf-8"],
)
def test_what_a_collector_does_to_a_log_changes_no_figure(name: str, change: Any) -> None:
    """Prefixes, line ends, colours, JSON envelopes and broken bytes: the same figures from the same lines."""
    text = (LOGS / "cpu" / f"{name}.log").read_text(encoding="utf-8")
    plain = parse(io.StringIO(text, newline="\n"))
    dressed = parse_stream(io.BytesIO(change(text).encode("utf-8", "surrogateescape")))
    assert len(dressed) == len(plain) == 1

    def seen(log: EngineLog) -> Any:
        figures = {n: [(f.value, f.line) for f in log.all(n)] for n in log.figures if log.figures[n][0].unit != "text"}
        return figures, [(r.kind, r.line) for r in log.refusals], {k: s.value for k, s in log.settings.items()}

    assert seen(dressed[0]) == seen(plain[0])
    ends = [(ended.status, ended.kind) for ended in (verdict(dressed[0]), verdict(plain[0]))]
    assert ends[0] == ends[1]


def test_utf16_and_gzip_are_read() -> None:
    """A log redirected by PowerShell, and a rotated one of two gzip members."""
    import gzip

    data = (LOGS / "cpu" / "0.32.0-llama.log").read_bytes()
    wanted = parse_stream(io.BytesIO(data))[0].value("kv_tokens")
    half = data.index(b"\n", len(data) // 3) + 1
    packed = gzip.compress(data[:half]) + gzip.compress(data[half:])
    for other in (data.decode("utf-8").encode("utf-16"), packed):
        assert parse_stream(io.BytesIO(other))[0].value("kv_tokens") == wanted
    assert parse_stream(io.BytesIO(packed[: len(packed) // 2])) is not None


def test_every_cut_of_a_real_log_is_read() -> None:
    """A log cut anywhere gives only figures that the whole log has, and never says it started before it did."""
    data = (LOGS / "cpu" / "0.32.0-auto-util0.3.log").read_bytes()
    whole = parse_stream(io.BytesIO(data))[0]
    ready = data.index(b"init engine (profile")
    for cut in range(0, len(data), 97):
        for log in parse_stream(io.BytesIO(data[:cut])):
            for name in log.figures:
                assert {f.printed for f in log.all(name)} <= {f.printed for f in whole.all(name)}
            if cut < ready:
                assert verdict(log).status != "started"
