"""Every message of every version: what is rendered is what is read."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.engines.vllm.logs.log import parse
from membudget.engines.vllm.logs.messages import NEEDLES, messages
from membudget.engines.vllm.logs.record import EngineLog, Figure
from tests_math.engines.vllm.logs.log_lines import (
    GIB,
    PREFIXES,
    Rendered,
    Template,
    any_message,
    lines,
    rendered,
    templates,
)

pytestmark = pytest.mark.suite


def check(log: EngineLog, message: Rendered) -> None:
    """Each value is read back: exactly, or within the rounding of its print."""
    if message.refusal:
        assert [refusal.kind for refusal in log.refusals] == [message.refusal]
    for name, (kind, value) in message.values.items():
        if name.startswith("!"):
            read = log.refusals[0].value(name[1:])
            assert isinstance(read, int)
            assert abs(read - value) <= GIB // 200 + 1
            continue
        found = [figure for figure in log.all(name) if _prints_like(figure, value)]
        assert found, f"{name}: {value} not among {log.all(name)}"
        exact = kind in ("bytes", "int", "comma", "u")
        assert found[0].half == 0 if exact else found[0].half > 0


def _prints_like(figure: Figure, value: float) -> bool:
    """Whether a value prints like a figure: as decimals, since 0.26 and 0.255 as floats are more than 0.005 apart."""
    if not figure.half:
        return figure.value == value
    return abs(Fraction(str(figure.value)) - Fraction(value)) <= Fraction(str(figure.half))


@pytest.mark.parametrize("template", templates(), ids=lambda t: f"{t.first}-{t.template[:48]}")
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_render_then_parse_is_identity(template: Template, data: st.DataObject) -> None:
    """parse(render(x)) == x for each message of each version, behind any prefix."""
    line, message = data.draw(lines(rendered(template)))
    found = parse([line])
    if message.values or message.refusal:
        assert len(found) == 1
        check(found[0], message)


@given(st.lists(lines(), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_nothing_but_what_was_printed_is_found(drawn: list[tuple[str, Rendered]]) -> None:
    """Any mix of messages yields only figures that one of them rendered."""
    allowed = {name.lstrip("!") for _, message in drawn for name in message.values}
    for log in parse([line for line, _ in drawn]):
        assert {name for name in log.figures if log.figures[name][0].unit != "text"} <= allowed


@given(any_message, st.sampled_from(PREFIXES), st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_a_cut_line_never_gives_a_wrong_number(message: Rendered, prefix: str, cut: int) -> None:
    """A log that ends in the middle of a line yields the printed figures or none, never a part of one."""
    whole = prefix.format("INFO 05-04 09:12:13 [a.py:1] ") + message.text
    first = "INFO 05-04 09:12:12 [a.py:1] nothing here\n"
    full = {name: {f.printed for f in log.all(name)} for log in parse([first, whole + "\n"]) for name in log.figures}
    for log in parse([first, whole[: max(0, len(whole) - cut)]]):
        for name in log.figures:
            assert {figure.printed for figure in log.all(name)} <= full[name]


def test_the_table_is_well_formed() -> None:
    """Keys are unique, versions ordered, and the anchor is no regular expression."""
    rows = messages()
    assert len({each.key for each in rows}) == len(rows)
    for each in rows:
        assert [int(part) for part in each.first.split(".")] <= [int(part) for part in each.last.split(".")]
        assert each.pattern.groups == len(each.holes)


@given(any_message)
@settings(max_examples=300, deadline=None)
def test_the_prefilter_lets_every_message_through(message: Rendered) -> None:
    """Each rendered message has a needle in it, and the anchor of at least one row."""
    if message.values or message.refusal:
        assert any(needle in message.text for needle in NEEDLES)
        assert any(row.anchor in message.text and row.pattern.search(message.text) for row in messages())


def test_every_row_with_figures_is_rendered_by_a_template() -> None:
    """No row of the table is there without a text of vLLM's sources, but for those named here."""
    shown = [template.template for template in templates()]
    unseen = {
        # banners, dumps and other lines with figures in text form: captured logs have them
        "api_version", "logo_version", "logo_model", "args", "namespace", "init",
        # not from vllm/: torch, uvicorn, the kernel
        "cuda_oom", "killed", "sigkill", "serving", "serving_on",
        # names and words, no figures
        "architecture", "draft_architecture", "drafter", "kv_dtype", "async", "mamba_mode",
        # read in captured logs or older sources
        "snapshot", "blocks_config", "graph_off", "graph_later", "group_sizes", "hybrid_off", "sliding_as_full",
        "mamba_block", "layout", "hybrid_disabled", "core_failed", "core_failed_start", "core_exception",
        "core_fatal", "worker_failed", "worker_init",
        "method_failed", "v0_failed",
    }  # fmt: skip
    missing = {row.key for row in messages() if not any(row.anchor in text for text in shown)} - unseen
    assert missing == set()


def test_the_documented_table_is_the_parsers() -> None:
    """docs/vllm-logs.md lists each message and its versions, and each kind of refusal, as the parser has them."""
    page = (Path(__file__).parents[4] / "docs" / "vllm-logs.md").read_text(encoding="utf-8")
    for row in messages():
        if row.refusal:
            assert f"`{row.refusal}`" in page
        elif row.event != "failed":
            assert f"| `{row.key}` | {row.first} to {row.last} |" in page
