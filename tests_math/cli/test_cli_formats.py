"""`membudget formats MODEL`: a model in every format, and which of them fit a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.suite

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., tuple[int, Any]]
LLAMA = "meta-llama/Llama-3.1-8B"
CARD = ("--machine", "rtx-4090", "--ctx", "8k", "--users", "8")


def by_name(document: Any) -> dict[str, Any]:
    """Rows by their format."""
    return {row["format"]: row for row in document["formats"]}


def test_rows_are_what_plan_says(ask: Ask) -> None:
    """Every figure of a row is that of `plan --format`, whatever the layout."""
    code, document = ask("formats", LLAMA, *CARD)
    assert code == 0
    rows = by_name(document)
    for name in ("bf16", "fp8", "awq", "q4_k_m", "exl3", "int8-bnb"):
        engine = "llama_cpp" if name == "q4_k_m" else "vllm"
        _, plan = ask("plan", LLAMA, *CARD, "--format", name, "--engine", engine)
        own = ("format", "common")
        assert {key: plan[key] for key in rows[name] if key not in own} == {
            key: size for key, size in rows[name].items() if key not in own
        }


def test_published_sizes_and_known_answers(ask: Ask) -> None:
    """16,060,522,496 bytes in bf16 (the hub's total_size), 8 users miss a 4090; in fp8 they fit."""
    rows = by_name(ask("formats", LLAMA, *CARD)[1])
    assert 16_060_522_496 < rows["bf16"]["weights"] < 16_060_522_496 + 64 * 2**20  # and rotary tables, rounded up
    assert (rows["bf16"]["fits"], rows["bf16"]["max_users"]) == (False, 5)
    assert rows["fp8"]["fits"] is True


def test_the_least_compressed_comes_first(ask: Ask, run: Run) -> None:
    """Sorted by bytes; the sentence names the first that fits, and how many do."""
    _, document = ask("formats", LLAMA, *CARD)
    sizes = [row["weights"] for row in document["formats"]]
    assert sizes == sorted(sizes, reverse=True)
    for more, rows in (
        ((), [row for row in document["formats"] if row["common"]]),
        (["--all"], document["formats"]),
    ):
        fits = [row["format"] for row in rows if row["fits"]]
        _, out, _ = run("formats", LLAMA, *CARD, *more)
        told = f"{len(fits)} of {len(rows)} formats fit; the least compressed of them is {fits[0]}: "
        assert told in " ".join(out.split())


def test_what_is_common_is_shown(ask: Ask, run: Run) -> None:
    """gpt-oss keeps its experts in MXFP4 in every file: no row has more bytes than the declared one."""
    asked = ("openai/gpt-oss-20b", "--machine", "rtx-4090")
    _, document = ask("formats", *asked)
    seen = [row["format"] for row in document["formats"] if row["common"]]
    assert seen[-1] == "mxfp4_moe"
    assert all(name.startswith("mxfp4") for name in seen)
    _, out, _ = run("formats", *asked)
    assert "mxfp8" not in out
    assert "less common ones: --all" in out
    _, out, _ = run("formats", LLAMA, "--machine", "rtx-4090")
    assert len(out.splitlines()) < 40
    assert all(f"\n{name} " in out for name in ("bf16", "awq", "q4_k_m", "q8_0"))


def test_llama_cpp_reads_gguf_alone(ask: Ask) -> None:
    """Its rows are GGUF's; the rest is refused with the reason."""
    _, document = ask("formats", LLAMA, *CARD, "--engine", "llama_cpp")
    from membudget import formats
    from membudget.budgets.settings import is_gguf

    assert all(is_gguf(formats.get(row["format"])) for row in document["formats"])
    assert all("reads GGUF files alone" in document["refused"][name] for name in ("bf16", "awq", "fp8"))


def test_no_format_fits(ask: Ask, run: Run) -> None:
    """Exit code 1, and which bucket of the smallest breaks it."""
    code, document = ask("formats", "deepseek-ai/DeepSeek-V3", "--machine", "rtx-4090")
    assert code == 1
    assert not any(row["fits"] for row in document["formats"])
    _, out, _ = run("formats", "deepseek-ai/DeepSeek-V3", "--machine", "rtx-4090")
    assert "formats fits; in " in out
    assert "weights need" in " ".join(out.split())


def test_weights_alone_without_a_machine(ask: Ask, run: Run) -> None:
    """A model without a machine: bytes of each format, nothing about fitting."""
    code, document = ask("formats", LLAMA)
    assert code == 0
    assert document["machine"] is None
    assert all(set(row) == {"format", "weights", "common"} for row in document["formats"])
    _, out, _ = run("formats", LLAMA)
    assert "fit" not in out


def test_a_declared_format_is_a_row_and_others_say_why_not(ask: Ask) -> None:
    """gpt-oss declares mxfp4; what does not apply to its shapes is refused by name, not left out."""
    _, document = ask("formats", "openai/gpt-oss-20b")
    assert document["declared"] == "mxfp4"
    rows = by_name(document)
    assert rows["mxfp4"]["weights"] == 13_761_264_768  # the hub's total_size
    from membudget import formats

    assert set(rows) | set(document["refused"]) >= set(formats.names())
    assert all(document["refused"].values())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--machine", "rtx-4090"], "--machine asks what fits, and no MODEL is named to fit"),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype asks what fits, and no MODEL is named to fit"),
        ([LLAMA, "--users", "8"], "--users asks what fits: name a machine with --machine"),
        ([LLAMA, "--machine", "toaster"], "toaster"),
        ([LLAMA, "--machine", "rtx-4090", "--users", "0"], "--users: 0 is refused"),
        ([LLAMA, "--machine", "2x rtx-4090", "--engine", "transformers"], "--machine: 2 machines need"),
    ],
)
def test_what_is_refused(run: Run, words: list[str], told: str) -> None:
    """An option without what it is of, and values as everywhere."""
    code, _, error = run("formats", *words)
    assert code == 2
    assert told in error


def test_several_machines(ask: Ask) -> None:
    """`2x dgx-spark` is planned as `plan` does; a format whose split is not known is refused by name."""
    _, document = ask("formats", "meta-llama/Llama-3.1-70B", "--machine", "2x dgx-spark")
    rows = by_name(document)
    _, plan = ask("plan", "meta-llama/Llama-3.1-70B", "--machine", "2x dgx-spark", "--format", "bf16")
    assert {name: rows["bf16"][name] for name in ("weights", "total", "headroom", "max_users")} == {
        name: plan[name] for name in ("weights", "total", "headroom", "max_users")
    }


@pytest.mark.parametrize("command", [["plan", LLAMA, "--format", "fp8"], ["plan", LLAMA, "--format=fp8"]])
@pytest.mark.parametrize("more", [["--format", "awq"], ["--format=awq"]])
def test_a_value_given_twice_is_refused(run: Run, command: list[str], more: list[str]) -> None:
    """The first would be forgotten without a word; what may be repeated still may."""
    code, _, error = run(*command, *more)
    assert code == 2
    assert "--format is given twice, 'fp8' and 'awq'; it takes one value" in error
    assert run("plan", LLAMA, "--machine", "h100-80gb", "--machine", "dgx-spark")[0] == 0


def test_the_first_that_fits_as_a_plan(run: Run, ask: Ask) -> None:
    """The command at the end plans that row: 37 of 55 fit, and the first of them is llama.cpp's."""
    asked = ("Qwen/Qwen2.5-32B", "--machine", "rtx-5090", "--ctx", "16k", "--users", "2")
    _, document = ask("formats", *asked)
    first = next(row for row in document["formats"] if row["fits"] and row["common"])
    _, out, _ = run("formats", *asked)
    command = " ".join(out.split()).partition("as a plan: membudget ")[2].split()
    code, plan = ask(*command)
    assert code == 0
    assert [plan[name] for name in ("format", "engine", "total", "max_users")] == [
        first[name] for name in ("format", "engine", "total", "max_users")
    ]


def test_a_gguf_mix_for_another_engine_is_noted(ask: Ask) -> None:
    """vLLM has no GGUF since it left its tree: the plan says who reads the file."""
    for engine, noted in (("vllm", True), ("llama_cpp", False)):
        _, plan = ask("plan", LLAMA, "--machine", "rtx-4090", "--format", "q4_k_m", "--engine", engine)
        assert any("is GGUF: llama.cpp reads it" in note for note in plan["notes"]) == noted
    _, plan = ask("plan", LLAMA, "--machine", "rtx-4090", "--format", "fp8")
    assert not any("GGUF" in note for note in plan["notes"])


def test_a_mac_is_llama_cpps(ask: Ask) -> None:
    """vLLM has no Metal: its formats are no rows of a Mac unless they are asked for; a plan is llama.cpp's."""
    _, document = ask("formats", LLAMA, "--machine", "apple-m1-max-32gb")
    assert {row["engine"] for row in document["formats"]} == {"llama_cpp"}
    assert "vLLM has no Metal" in document["refused"]["fp8"]
    _, document = ask("formats", LLAMA, "--machine", "apple-m1-max-32gb", "--engine", "transformers")
    assert "fp8" in by_name(document)
    _, plan = ask("plan", LLAMA, "--machine", "apple-m1-max-32gb")
    assert plan["engine"] == "llama_cpp"
    assert any("planned for llama.cpp: vLLM does not run on apple-m1-max-32gb, metal" in note for note in plan["notes"])


def test_transformers_holds_no_gguf(ask: Ask, run: Run) -> None:
    """It unpacks GGUF into 16 bits: a plan is refused with what to plan, and no mix is a row for it."""
    code, _, error = run("plan", LLAMA, "--machine", "rtx-4090", "--format", "q4_k_m", "--engine", "transformers")
    assert code == 2
    assert "transformers unpacks into 16 bits when it loads: plan it as bf16" in error
    _, document = ask("formats", LLAMA, "--machine", "rtx-4090", "--engine", "transformers")
    assert "q4_k_m" not in by_name(document)
    assert "unpacks" in document["refused"]["q4_k_m"]


def test_a_declared_mix_is_a_row_of_its_own(run: Run, ask: Ask) -> None:
    """A published quantization that shares its name with a plain format: both are rows, and its plan names none."""
    asked = ["nvidia/DeepSeek-V4-Flash-NVFP4", "--machine", "b200", "--ctx", "8k", "--users", "1"]
    asked += ["--engine", "arithmetic"]
    _, document = ask("formats", *asked)
    rows = by_name(document)
    assert rows["fp8 (declared)"]["weights"] != rows["fp8"]["weights"]
    _, out, _ = run("formats", *asked)
    command = " ".join(out.split()).partition("as a plan: membudget ")[2].split()
    _, plan = ask(*command)
    first = next(row for row in document["formats"] if row["fits"] and row["common"])
    assert plan["total"] == first["total"]


@pytest.mark.parametrize("model", ["nvidia/MiniMax-M2.7-NVFP4", "zai-org/GLM-5", "meta-llama/Llama-3.1-70B"])
@pytest.mark.parametrize("machine", ["apple-m1-max-64gb", "mi300x", "rtx-4090"])
def test_what_is_for_llama_cpp_fits_there(ask: Ask, model: str, machine: str) -> None:
    """Each change that names a GGUF is planned for llama.cpp as well: the engine that reads it."""
    asked = ["plan", model, "--machine", machine, "--ctx", "268", "--users", "48", "--engine", "vllm"]
    _, plan = ask(*asked)
    for change in plan["changes"]:
        if "for llama.cpp" not in change["text"]:
            continue
        words = [word for name, value in change["values"].items() for word in (f"--{name}", str(value))]
        line = ["plan", model, "--machine", machine, "--engine", "llama_cpp"]
        for name, value in (("--ctx", "268"), ("--users", "48")):
            line += [] if name in words else [name, value]
        code, other = ask(*line, *words)
        assert code == 0, (change, other)
