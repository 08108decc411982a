"""What commands refuse before they work: paths, numbers, names; each message names the option and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.suite

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command may find this repository's files."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("check --models nowhere", "--models 'nowhere': no such folder"),
        ("probe --only nonsense b.yaml", "--only: 'nonsense' is refused; allowed is preflight, context, weights"),
        ("probe --models nowhere b.yaml", "--models 'nowhere': no such folder"),
        ("init Qwen/Qwen3-8B --machine h100 --to /dev/null", "--to /dev/null: it is there, and no folder"),
        ("plan Qwen/Qwen3-8B --users 010", "--users: '010' is octal to some readers"),
        ("plan Qwen/Qwen3-8B --ctx 08k", "--ctx: '08Ki' is octal to some readers"),
        ("pool Qwen/Qwen3-8B --available-kv 0123456789", "--available-kv: '0123456789 B' is octal"),
        (
            "pool Qwen/Qwen3-8B --available-kv 8GiB --dcp 3",
            "does not divide tensor_parallel_size 1",
        ),
        (
            "pool Qwen/Qwen3-8B --available-kv 8GiB --tp 8 --dcp 3",
            "does not divide tensor_parallel_size 8",
        ),
        ("explore Qwen/Qwen3-8B -o /nonexistent/x.html", "-o /nonexistent/x.html: cannot be written: No such file"),
    ],
)
def test_refused_with_the_options_name(run: Run, line: str, said: str) -> None:
    """Exit code 2, nothing on stdout, the option and what is wrong with it on stderr."""
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert said in err


def test_an_empty_path_is_named(run: Run) -> None:
    """`membudget check ''` says that the path is empty."""
    assert run("check", "")[::2] == (2, "membudget: the path is empty: name a budget file, or a folder of them\n")


def test_thousands_may_have_commas(ask: Ask) -> None:
    """8,192 is no trap: it has one reading."""
    assert ask("plan", "Qwen/Qwen3-8B", "--machine", "h100", "--ctx", "8,192")[1]["ctx"] == 8192


@pytest.mark.parametrize(
    "argv",
    [
        ["fleet", "--params", "9" * 10_000, "--layers", "2", "--kv-heads", "2"],
        ["plan", "Qwen/Qwen3-8B", "--users", "9" * 10_000],
        ["plan", "Qwen/Qwen3-8B", "--machine", "x" * 10_000],
        ["plan", "Qwen/Qwen3-8B", "--format", "x" * 10_000],
        ["plan", "Qwen/Qwen3-8B", "--kv-cache-dtype", "x" * 10_000],
        ["pool", "Qwen/Qwen3-8B", "--available-kv", "9" * 10_000 + "GiB"],
    ],
    ids=lambda argv: " ".join(argv)[:40],
)
def test_long_values_are_cut(run: Run, argv: list[str]) -> None:
    """Ten thousand characters make a short message, without advice on Python's settings."""
    code, _, err = run(*argv)
    assert code == 2
    assert len(err) < 2_000
    assert "set_int_max_str_digits" not in err


def test_long_numbers_in_files_are_cut(run: Run) -> None:
    """Sizes and counts of ten thousand digits in budgets and machine files: their line, and no advice on Python."""
    budget = "model: Qwen/Qwen3-8B\nctx: {0}Ki\nusers: 1\nmachine: h100\nexpect: {{weights: within 1% of {0} GB}}\n"
    Path("b.yaml").write_text(budget.format("9" * 10_000), encoding="utf-8")
    Path("m.yaml").write_text(f"box:\n  memory: {'9' * 10_000} GiB\n", encoding="utf-8")
    for argv in (["check", "b.yaml"], ["machines", "--machines", "m.yaml"]):
        code, out, err = run(*argv)
        assert code == 2
        assert "set_int_max_str_digits" not in out + err
        assert argv[-1] + ":2" in out + err


def test_a_pipe_is_not_waited_for(run: Run) -> None:
    """A FIFO in place of a budget or of a machine file is refused at once."""
    os.mkfifo("f.yaml")
    for argv in (["check", "f.yaml"], ["check", "."], ["machines", "--machines", "f.yaml"]):
        code, out, err = run(*argv)
        assert code == 2
        assert "f.yaml: cannot be read: it is a pipe or a device, no regular file" in out + err


def test_headers_are_not_available_offline(run: Run, ask: Ask) -> None:
    """Exit code 3: the repository may well exist, and nobody was asked."""
    code, _, err = run("count", "Qwen/Qwen3-8B", "--headers")
    assert code == 3
    assert "the hub is not asked: offline" in err
    assert ask("plan", "org/name/file.gguf")[0] == 3


@pytest.mark.parametrize(
    "name",
    [
        "EleutherAI/gpt-j-6b",
        "Qwen/Qwen-7B",
        "Qwen/Qwen-1_8B-Chat",
        "bigcode/gpt_bigcode-santacoder",
        "openai-community/gpt2-medium",
    ],
)
def test_a_config_without_a_dtype_needs_a_format(run: Run, name: str) -> None:
    """The message names the option and the field; with the option it plans."""
    code, _, err = run("plan", name, "--machine", "h100")
    assert code == 2
    assert "--format bf16" in err
    assert "`format: bf16`" in err
    assert run("plan", name, "--machine", "h100", "--format", "fp16")[0] == 0


def test_models_are_those_that_can_be_predicted(ask: Ask, run: Run) -> None:
    """Every id that is listed counts; one that is refused says why when it is asked for alone."""
    _, document = ask("models")
    assert "moonshotai/Kimi-K3" not in document["models"]
    assert "attn_res_block_size" in document["refused"]["moonshotai/Kimi-K3"]
    assert all(run("count", name)[0] == 2 for name in document["refused"])
    code, out, _ = run("models", "kimi-k3")
    assert code == 1
    assert out.startswith("moonshotai/Kimi-K3 ships, and is refused: ")


def test_pages_are_written_over_other_files_only_at_ones_word(run: Run) -> None:
    """A page is replaced by the next; a file that is none stays until --force."""
    explore = ["explore", "Qwen/Qwen3-8B", "-o"]
    assert [run(*explore, "page.html")[0] for _ in range(2)] == [0, 0]
    Path("notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = run(*explore, "notes.txt")
    assert code == 2
    assert "-o notes.txt: exists and was not written by membudget; --force overwrites it" in err
    assert Path("notes.txt").read_text(encoding="utf-8") == "mine"
    assert run(*explore, "notes.txt", "--force")[0] == 0


def test_one_user_is_one(run: Run) -> None:
    """No "1 users" in a fleet of one."""
    assert "1 user x 8,192 tokens" in run("fleet", "Qwen/Qwen3-8B", "--users", "1")[1]


def test_base_60_is_not_advised_into_quotes(run: Run) -> None:
    """`ctx: 12:30` is refused in quotes as well, so the advice is digits."""
    Path("b.yaml").write_text("model: Qwen/Qwen3-8B\nctx: 12:30\nusers: 1\nmachine: h100\n", encoding="utf-8")
    code, out, _ = run("check", "b.yaml")
    assert code == 2
    assert "b.yaml:2: ctx: 12:30 is a number in base 60 to some YAML readers: write it out in decimal digits" in out


def test_init_says_what_to_do_next(run: Run) -> None:
    """The check, and the test that ships with the package."""
    _, out, _ = run("init", "Qwen/Qwen3-8B", "--machine", "h100")
    path = "budgets/qwen3-8b-bf16.h100-80gb.yaml"
    assert f"Next: membudget check {path}\n  or: pytest --pyargs membudget.tests --membudget-budgets={path}\n" in out


@pytest.mark.parametrize("broken", ["max([])", "int('x')", "float('x')", "[].index(1)"])
def test_what_python_says_is_a_bug(run: Run, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """A built-in's own words are no message: the exit code is 70 and says how to show where; ours stay ours."""
    from membudget.cli.commands import machines

    monkeypatch.setattr(machines, "run", lambda _: eval(broken))
    code, _, error = run("machines")
    assert code == 70
    assert "internal error: ValueError" in error
    assert "MEMBUDGET_TRACEBACK" in error


def test_our_own_words_are_none(run: Run) -> None:
    """A plain ValueError that a line here raises is for the user."""
    code, _, error = run("plan", "Qwen/Qwen3-8B", "--machine", "2x dgx-spark", "--engine", "llama_cpp")
    assert code == 2
    assert "internal" not in error


@pytest.mark.parametrize("when", ["write", "close"])
def test_init_on_a_full_disk_leaves_no_file(
    when: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC while it is written, or when it is closed: an error, and no empty budget that the next init trips over."""
    import builtins

    real = builtins.open

    def full(path: object, *args: object, **more: object) -> object:
        file = real(path, *args, **more)  # type: ignore[call-overload]
        if str(path).endswith(".yaml") and "x" in args:

            def fail(*_: object) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(file, when, fail) if when == "write" else None
            if when == "close":
                return _Closing(file)
        return file

    class _Closing:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Any:
            return self.file

        def __exit__(self, *_: object) -> None:
            self.file.close()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(builtins, "open", full)
    code, _, err = run("init", "Qwen/Qwen3-8B", "--machine", "h100", "--to", str(tmp_path / "budgets"))
    assert (code, "No space left on device" in err) == (2, True)
    assert list((tmp_path / "budgets").iterdir()) == []
    monkeypatch.undo()
    assert run("init", "Qwen/Qwen3-8B", "--machine", "h100", "--to", str(tmp_path / "budgets"))[0] == 0
