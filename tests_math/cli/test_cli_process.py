"""`membudget` as a process: exit codes, streams, pipes, encodings, and what it imports."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
PLAN = ["plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "32k", "--users", "8"]


def call(*argv: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m membudget`, without a network."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "",
        "FORCE_COLOR": "",
        **env,
    }
    command = [sys.executable, "-m", "membudget", *argv]
    return subprocess.run(command, capture_output=True, check=False, env=environment, cwd=cwd, timeout=60)


def test_plan_needs_no_file(tmp_path: Path) -> None:
    """The first command of a first-time user answers anywhere."""
    done = call(*PLAN, cwd=tmp_path, PYTHONIOENCODING="utf-8")
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "8,190,735,360 parameters" in text
    assert "│" in text
    assert "\x1b" not in text
    assert list(tmp_path.iterdir()) == []


def test_plan_in_ascii() -> None:
    """Where the stream cannot show blocks, bars are ASCII."""
    done = call(*PLAN, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"#" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437"])
@pytest.mark.parametrize(
    "argv",
    [
        PLAN,
        ["count", "Qwen/Qwen3-8B", "--layers"],
        ["fleet", "Qwen/Qwen3-8B"],
        ["machines"],
        ["machines", "dgx-spark"],
        ["formats"],
        ["doctor"],
        ["pool", "Qwen/Qwen3-8B", "--machine", "h100"],
        ["check", str(ROOT / "budgets" / "qwen3-8b-bf16.dgx-spark.yaml")],
        ["--help"],
        ["plan", "Qwen/Qwen3-\u65e5\u672c"],
    ],
    ids=" ".join,
)
def test_consoles_that_are_not_utf_8(argv: list[str], encoding: str) -> None:
    """Windows' consoles and pipes: no crash, and what was printed is text of that console."""
    done = call(*argv, PYTHONIOENCODING=encoding, COLUMNS="80")
    assert done.returncode in (0, 1, 2)
    assert b"Traceback" not in done.stderr
    text = (done.stdout + done.stderr).decode(encoding)
    assert all(letter.isascii() or letter in "\u65e5\u672c" for letter in text), text
    assert "\\u2502" not in text


@pytest.mark.parametrize(
    ("variables", "colours"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_in_a_pipe(variables: dict[str, str], colours: bool) -> None:
    """None, unless FORCE_COLOR asks for them; NO_COLOR has the last word."""
    assert (b"\x1b[" in call(*PLAN, PYTHONIOENCODING="utf-8", **variables).stdout) == colours


@pytest.mark.parametrize("columns", ["1", "40", "60", "80", "200", "x"])
def test_plan_keeps_to_the_width(columns: str) -> None:
    """No line is wider than the terminal, from 40 columns on."""
    done = call(*PLAN, PYTHONIOENCODING="utf-8", COLUMNS=columns)
    width = max(int(columns), 40) if columns.isdigit() else 100
    assert max(map(len, done.stdout.decode().splitlines())) <= width


def test_exit_codes() -> None:
    """0 fits, 1 does not, 2 wrong input, 3 not available here."""
    assert call(*PLAN).returncode == 0
    assert call("plan", "meta-llama/Llama-3.1-70B", "--machine", "rtx-4090").returncode == 1
    assert call("plan", "Qwen/Qwen3-8B", "--ctx", "-3").returncode == 2
    done = call("plan", "nobody/nothing", "--machine", "rtx-4090")
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_a_reader_that_leaves_is_no_error() -> None:
    """`membudget ... | head -1` says nothing on stderr."""
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for argv in (PLAN, ["schema"], ["machines", "--json"]):
        command = [sys.executable, "-m", "membudget", *argv]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, env=environment)
        assert done.stderr == b""
        assert done.returncode == 0
    os.close(write)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "full"])
def test_an_answer_that_cannot_be_written_is_said(closed: bool) -> None:
    """A full disk and a closed stdout: one message on stderr, 74, neither yes nor no."""
    if not closed and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    for argv in (PLAN, ["--help"], ["machines", "--json"]):
        shell = f"exec {shlex.join([sys.executable, '-m', 'membudget', *argv])} {'>&-' if closed else '>/dev/full'}"
        done = subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE, check=False, env=environment, timeout=60)
        assert done.returncode == 74
        why = b"it is closed" if closed else b"No space left on device"
        assert done.stderr == b"membudget: stdout: cannot be written: " + why + b"\n"


def test_bytes_that_are_no_text() -> None:
    """A name in another encoding is quoted, not a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "membudget", "plan", b"mod\xff\xfeel", "--json"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 2
    assert "error" in json.loads(done.stdout)
    assert done.stderr == b""
