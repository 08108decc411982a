"""No text makes the parser raise, loop or keep what it should not."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.engines.vllm.logs.compare import compare
from membudget.engines.vllm.logs.document import as_json
from membudget.engines.vllm.logs.log import parse, parse_stream
from membudget.engines.vllm.logs.messages import NEEDLES, messages
from membudget.engines.vllm.logs.record import KEEP
from membudget.engines.vllm.logs.stream import MAX_LINE
from membudget.engines.vllm.logs.text import explain
from tests_math.engines.vllm.logs.log_lines import lines

pytestmark = pytest.mark.suite

LOGS = Path(__file__).parents[4] / "fixtures" / "logs"
REAL = (LOGS / "cpu" / "0.32.0-err-maxlen-gemma3.log").read_bytes()

_pieces = st.one_of(
    st.text(max_size=40),
    st.sampled_from([*NEEDLES, *(row.anchor for row in messages())]),
    st.sampled_from(
        ["\r", "\n", "\x1b[31m", "(EngineCore pid=1) ", "(Worker_TP0 pid=2) ", "INFO 05-04 09:12:13 [a.py:1] "]
    ),
    st.sampled_from(
        ["-1.0", "9" * 50, "1,2,3", "0x10", "NaN", "1e400", "٣", "½", " GiB", " tokens", "{", "}", "'", '"']
    ),
    lines().map(lambda pair: pair[0]),
)
_texts = st.lists(_pieces, max_size=30).map("".join)


def use(text: bytes) -> None:
    """Everything one can do with a log."""
    for log in parse_stream(io.BytesIO(text)):
        json.dumps(as_json(log), allow_nan=False)
        shown = "\n".join(explain(log, compare(log, None)))
        assert "\x1b" not in shown
        assert "\r" not in shown


@given(_texts)
@settings(max_examples=300, deadline=None)
def test_any_text_is_read(text: str) -> None:
    """Messages, their parts, escapes and nonsense in any order: no exception, and plain JSON comes out."""
    use(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=2000))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read(data: bytes) -> None:
    """Bytes that are no text at all."""
    use(data)
    use(b"\x1f\x8b" + data)
    use(b"\xff\xfe" + data)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_real_log_is_read(data: st.DataObject) -> None:
    """A real log with bytes changed, lost and doubled."""
    text = bytearray(REAL)
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(st.binary(max_size=8))
        text[at : at + data.draw(st.integers(0, 200))] = piece
    use(bytes(text))


def test_one_endless_line_is_read_in_pieces() -> None:
    """A progress bar that never ends its line takes no more memory than a piece, and what follows is found."""
    import tracemalloc

    class Endless(io.RawIOBase):
        """30 MB without a newline, then a figure."""

        left = 30_000_000

        def read1(self, size: int) -> bytes:
            """The next piece."""
            if self.left <= 0:
                return b""
            self.left -= size
            bar = b"\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.02s/it]"
            piece = (bar * (size // len(bar) + 1))[:size]
            return piece if self.left > 0 else piece + b"\nAvailable KV cache memory: 5.0 GiB\n"

    tracemalloc.start()
    found = parse_stream(Endless())  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[0].value("available_kv") == 5 * 2**30
    assert found[0].get("available_kv").line == 2  # type: ignore[union-attr]
    assert peak < 16 * MAX_LINE


def test_a_figure_that_repeats_for_days_is_not_kept_for_days() -> None:
    """What one engine keeps is bounded, whatever the log repeats."""
    log = parse(f"Available KV cache memory: {n}.5 GiB" for n in range(20 * KEEP))[0]
    assert len(log.all("available_kv")) == KEEP
    assert log.dropped == 19 * KEEP
    refused = parse(f"CUDA out of memory. Tried to allocate {n}.00 MiB." for n in range(1000))[0]
    assert len(refused.refusals) <= 64
