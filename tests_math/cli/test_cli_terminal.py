"""Drawing: bars, tables, wrapping, colours; and a real terminal."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from membudget.text.terminal import Terminal, plain, table
from tests_math.strategies import sizes

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
SGR = re.compile(r"\x1b\[[0-9;]*m")


@given(start=sizes, size=sizes, limit=sizes, cells=st.integers(1, 120), unicode=st.booleans(), colour=st.booleans())
@example(start=0, size=0, limit=10, cells=10, unicode=True, colour=False)
@example(start=10, size=1, limit=11, cells=1, unicode=False, colour=True)
def test_bar(start: int, size: int, limit: int, cells: int, unicode: bool, colour: bool) -> None:
    """Never wider than its cells, something that is not 0 shows, ASCII where asked for."""
    scale = max(start + size, limit, 1)
    bar = Terminal(80, unicode, colour).bar(start, start + size, limit, scale, cells, "weights")
    text = SGR.sub("", bar)
    assert len(text) <= cells
    assert colour or bar == text
    assert unicode or text.isascii()
    marks = [letter for letter in text if letter not in " │|"]
    assert bool(marks) == (size > 0)


@given(parts=st.lists(st.integers(0, 2**40), min_size=1, max_size=5), cells=st.integers(8, 100))
def test_bars_make_a_waterfall(parts: list[int], cells: int) -> None:
    """Each bar starts where the one above ended, and the last ends where the sum does."""
    terminal, scale, start, reached = Terminal(80), max(sum(parts), 1), 0, 0
    for part in parts:
        text = terminal.bar(start, start + part, scale, scale, cells)
        cols = [column for column, letter in enumerate(text) if letter not in " │"]
        if cols:
            assert reached - 1 <= cols[0] <= reached + 1
            assert cols == list(range(cols[0], cols[-1] + 1))
            reached = cols[-1] + 1
        start += part
    assert reached <= cells


@given(st.text(alphabet="ab ", max_size=300), st.integers(50, 120))
def test_wrap_keeps_every_word(text: str, width: int) -> None:
    """No word is lost, and no line is wider than the terminal unless one word is."""
    lines = Terminal(width).wrap(text, "  ", "- ")
    assert " ".join(" ".join(lines).split()).removeprefix("-").strip() == " ".join(text.split())
    assert all(len(line) <= width or len(line.split()) <= 2 for line in lines)


def test_table_lines_up() -> None:
    """Columns are as wide as their widest cell; rows may be short."""
    assert table([["a", "1", "x"], ["bbb", "22"]], "<>") == ["a     1  x", "bbb  22"]
    assert table([]) == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("./a/config.json", "./a/config.json"),
        ("a b", "'a b'"),
        ("$(rm)", "'$(rm)'"),
        ("", "''"),
        ("é", "'é'"),
        ("x\x1b[31m", r"'x\x1b[31m'"),
    ],
)
def test_names_from_outside(name: str, shown: str) -> None:
    """As they are where a shell would take them so, else quoted; never with control characters."""
    assert plain(name) == shown


def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding, width and colours follow the stream and the environment."""
    monkeypatch.delenv("COLUMNS", raising=False)
    pipe = Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert (pipe.unicode, pipe.colour, pipe.width) == (False, False, 100)
    assert Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="UTF-8")).unicode
    monkeypatch.setenv("COLUMNS", "72")
    assert Terminal.of(io.StringIO()).width == 72


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo terminals")
@pytest.mark.parametrize(("variables", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_on_a_terminal(variables: dict[str, str], colours: bool) -> None:
    """A terminal gets colours, unless NO_COLOR or TERM=dumb say otherwise."""
    master, slave = os.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **variables}
    command = [sys.executable, "-m", "membudget", "plan", "Qwen/Qwen3-8B", "--machine", "h100"]
    with subprocess.Popen(command, stdout=slave, stdin=slave, env=environment) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                more = os.read(master, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not more:
                break
            text += more
        assert process.wait(30) == 0
    os.close(master)
    assert (b"\x1b[" in text) == colours


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_says_nothing(tmp_path: Path) -> None:
    """Ctrl-C while a log is streamed in ends without a traceback."""
    # a shell's background jobs ignore SIGINT, and so would this child
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from membudget.cli.main import entry; "
    command = [sys.executable, "-c", code + "entry()", "log", "-"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"INFO 01-01 00:00:00 [x.py:1] hello\n" * 100_000)
        process.stdin.flush()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert err == b""
    assert process.returncode == 130
