"""`membudget fleet`, `pool`, `init`, `check`: known answers and what they write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from membudget.sources.locate import fixture_ids
from membudget.units import GIB

pytestmark = pytest.mark.suite

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., tuple[int, Any]]


def test_fleet_gqa(ask: Ask) -> None:
    """70B, 32,768 x 100 users, GQA bf16: 1,000 GiB of cache, 1,233.21 GB, 16 H100 or 9 H200."""
    code, fleet = ask(
        "fleet", "--params", "70", "--layers", "80", "--kv-heads", "8", "--ctx", "32768", "--users", "100"
    )
    assert code == 1  # one node of eight does not hold it
    assert fleet["kv_cache"] == 1000 * GIB
    assert round(fleet["total"] / 10**9, 2) == 1233.21
    assert [count["devices"] for count in fleet["counts"]] == [16, 9]
    assert fleet["lower_bound"] is True


def test_fleet_says_which_node_it_took(run: Run) -> None:
    """Without --node the verdict is on a default, and says so; a node that was named is not remarked on."""
    base = ("fleet", "meta-llama/Llama-3.1-8B", "--ctx", "8k", "--users", "4")
    assert "no --node was named: the verdict is on 8xh100-80gb" in run(*base)[1].replace("\n", " ").replace("  ", " ")
    assert "no --node" not in run(*base, "--node", "2xh100-80gb")[1]


def test_fleet_fp8_fits_one_node(ask: Ask) -> None:
    """fp8 weights and cache: 626.34 GB, 8 or 5 devices, one 8xH100 node holds it; 104 users are refused."""
    base = ["fleet", "--params", "70", "--layers", "80", "--kv-heads", "8", "--seq-len", "32768"]
    fp8 = ["--format", "fp8", "--kv-cache-dtype", "fp8", "--node", "8xh100-80gb"]
    code, fleet = ask(*base, *fp8, "--users", "100")
    assert code == 0
    assert round(fleet["total"] / 10**9, 2) == 626.34
    assert [count["devices"] for count in fleet["counts"]] == [8, 5]
    code, refused = ask(*base, *fp8, "--users", "104")
    assert code == 1
    assert "unbudgeted prefill peak" in refused["refusal"]


@pytest.mark.parametrize(("option", "named"), [("--seq-len", "seq_len"), ("--users", "users")])
@pytest.mark.parametrize("value", ["0", "-5"])
def test_fleet_names_the_field(ask: Ask, option: str, named: str, value: str) -> None:
    """seq_len or users below 1 is an error that names the field."""
    code, document = ask("fleet", "--params", "70", "--layers", "80", "--kv-heads", "8", f"{option}={value}")
    assert code == 2
    assert named in document["error"]["message"]


def test_pool_known_answer(ask: Ask) -> None:
    """60 GiB for Qwen3-8B in blocks of 16: 2,359,296 B a block, 27,306 of them, 53.33x at 8,192 tokens."""
    code, pool = ask("pool", "Qwen/Qwen3-8B", "--available-kv", "60GiB", "--max-model-len", "8192")
    assert code == 0
    assert pool["bytes_per_block"] == 16 * 2 * 36 * 8 * 128 * 2
    assert pool["num_blocks"] == 60 * GIB // pool["bytes_per_block"]
    assert pool["max_concurrency"] == pytest.approx(pool["num_blocks"] * 16 / 8192)
    assert set(pool) >= {"block_size", "page_size", "groups", "tokens", "max_model_len"}


@pytest.mark.parametrize(
    ("version", "util", "own"), [("0.32.0", "0.92", 0.92), ("0.20.0", "0.92", 0.92), ("0.19.1", "0.9", 0.9)]
)
def test_pool_takes_the_versions_utilization(ask: Ask, version: str, util: str, own: float) -> None:
    """gpu_memory_utilization is 0.92 by default since vLLM 0.20.0 and 0.9 before (config/cache.py of each)."""
    argv = ("pool", "Qwen/Qwen3-8B", "--machine", "h100-80gb", "--vllm-version", version)
    code, pool = ask(*argv)
    assert code == 0
    assert ask(*argv, "--gpu-memory-utilization", util)[1] == pool
    requested = next(part["bytes"] for part in pool["identity"]["parts"] if part["name"] == "requested")
    assert requested == pytest.approx(own * 81_121 * 2**20, abs=2)


def test_pool_refuses_in_vllms_words(run: Run) -> None:
    """A pool too small for one request is exit code 1 with the engine's own sentence."""
    code, out, err = run("pool", "Qwen/Qwen3-8B", "--available-kv", "1GiB", "--max-model-len", "32k")
    assert (code, err) == (1, "")
    assert "does not start" in out


def test_init_check_and_never_overwrite(run: Run, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first budget passes its own check; a second init leaves it as it is; a wrong truth turns it red."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("init", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "32k", "--users", "8")
    path = tmp_path / "budgets" / "qwen3-8b-bf16.dgx-spark.yaml"
    assert code == 0
    assert path.name in out
    before = path.read_bytes()
    code, _, err = run("init", "Qwen/Qwen3-8B", "--machine", "dgx-spark")
    assert code == 2
    assert "stays as it is" in err
    assert path.read_bytes() == before
    code, document = ask("check")
    assert code == 0
    assert (document["passed"], document["failed"]) == (1, 0)
    path.write_text(path.read_text().replace("8_190_735_360", "8_190_735_361"))
    code, document = ask("check", "budgets")
    assert code == 1
    (broken,) = document["budgets"][0]["broken"]
    assert (broken["field"], broken["predicted"]) == ("params", 8_190_735_360)


@pytest.mark.parametrize("name", ["model dir", "päth", "a: b", 'quo"te', "#x", "1e3", "- x"])
def test_init_of_a_path_is_readable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw_config: Callable[[str], Any], name: str
) -> None:
    """A folder of any name is written so that the budget reads it back."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(raw_config("Qwen/Qwen3-8B")))
    assert run("init", f"./{name}", "--machine", "h100")[0] == 0
    assert run("check")[0] == 0


def test_check_goes_on_after_a_bad_file(run: Run, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read is exit code 2 with file:line; the others are still checked."""
    monkeypatch.chdir(tmp_path)
    run("init", "Qwen/Qwen3-8B", "--machine", "h100")
    (tmp_path / "budgets" / "bad.yaml").write_text("model: Qwen/Qwen3-8B\nusers: 010\n")
    code, out, _ = run("check", "budgets/")
    assert code == 2
    assert "budgets/bad.yaml:2" in out
    assert "1 as expected" in out
    code, document = ask("check", "budgets/")
    assert (code, document["unreadable_files"], document["passed"], document["ok"]) == (2, 1, 1, False)


def test_check_of_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of budgets is wrong input."""
    monkeypatch.chdir(tmp_path)
    code, _, err = run("check")
    assert code == 2
    assert "budgets" in err


def test_a_fleet_says_whose_it_is(ask: Ask) -> None:
    """Layouts and caches are vLLM's: GGUF weights and a Mac are another engine's, and that is said."""
    fleet = ("fleet", "meta-llama/Llama-3.1-8B", "--users", "2")
    _, document = ask(*fleet, "--format", "q4_k_m")
    assert any("q4_k_m is GGUF, which llama.cpp reads" in note for note in document["notes"])
    _, document = ask(*fleet, "--device", "apple-m1-max-32gb", "--node", "apple-m1-max-32gb")
    assert any("vLLM has no Metal, as apple-m1-max-32gb needs" in note for note in document["notes"])
    _, document = ask(*fleet)
    assert not any("vLLM" in note for note in document["notes"])


def test_an_id_without_its_organisation_is_not_fetched(run: Run) -> None:
    """`fetch` takes ORG/NAME: a name alone is no command to give."""
    _, _, error = run("plan", "gemma-3-12b")
    assert "membudget fetch gemma-3-12b" not in error


QUANTIZED = sorted(name for name in fixture_ids() if re.search("FP8|NVFP4|V4|K2|V3|oss|Maverick", name))


@pytest.mark.parametrize("model", QUANTIZED)
def test_a_first_budget_of_a_published_quantization_is_the_plan(
    model: str, run: Run, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `init` writes is read again and says the same: a mix that no name stands for is written as none."""
    monkeypatch.chdir(tmp_path)
    code, written = ask("init", model, "--machine", "b200", "--offline", "--allow-misfit")
    if code == 2:
        return  # a model that is refused
    _, checked = ask("check", written["file"])
    assert "error" not in checked
    (only,) = checked["budgets"]
    _, plan = ask("plan", model, "--machine", "b200", "--offline")
    assert (only["ok"], only["total"]) == (True, plan["total"])


def test_init_freezes_no_misfit_unasked(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not fit is exit code 1 and no file; --allow-misfit writes `fits: false`."""
    monkeypatch.chdir(tmp_path)
    words = ("init", "meta-llama/Llama-3.1-70B", "--machine", "rtx-4090")
    code, found = ask(*words)
    assert (code, found["file"], found["fits"]) == (1, None, False)
    assert not list(tmp_path.rglob("*.yaml"))
    code, found = ask(*words, "--allow-misfit")
    assert code == 0
    assert "fits: false" in Path(found["file"]).read_text(encoding="utf-8")
    assert ask("check")[0] == 0


def test_init_ci_makes_plain_pytest_test_budgets(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow and pytest's setting, where there are none; what is there stays as it is."""
    monkeypatch.chdir(tmp_path)
    words = ("init", "Qwen/Qwen3-8B", "--machine", "h100", "--ci")
    assert ask(*words)[0] == 0
    assert "membudget_budgets = budgets" in Path("pytest.ini").read_text(encoding="utf-8")
    workflow = yaml.safe_load(Path(".github/workflows/membudget.yml").read_text(encoding="utf-8"))
    assert [step["run"] for step in workflow["jobs"]["budgets"]["steps"] if "run" in step] == [
        "python -m pip install membudget",
        "python -m pytest -m membudget",
    ]
    _, found = ask(*words, "--users", "2", "--to", "more")
    assert "add to pytest's section of pytest.ini: membudget_budgets = more" in found["notes"]


SANTACODER = Path(__file__).parents[2] / "fixtures" / "hostile" / "santacoder.config.json"


@pytest.mark.parametrize(
    "command",
    [
        ("count",),
        ("plan", "--machine", "h100", "--ctx", "2048"),
        ("pool", "--available-kv", "20GiB"),
        ("fleet", "--node", "8xh100", "--users", "10", "--ctx", "2048"),
        ("formats",),
        ("formats", "--machine", "h100", "--ctx", "2048"),
        ("init", "--machine", "h100", "--ctx", "2048"),
    ],
    ids=" ".join,
)
def test_custom_code_is_said_by_every_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """A class of the repository's own under a known model_type: counted as that type, and said so."""
    monkeypatch.chdir(tmp_path)
    _, out, err = run(command[0], str(SANTACODER), *command[1:])
    text = " ".join((out + err).split())
    assert "custom code: the repository has a class of its own (modeling_gpt2_mq.GPT2LMHeadCustomModel)" in text
    assert "counted as gpt_bigcode: its tensors and its cache may differ" in text


def test_custom_code_is_said_of_budgets(run: Run, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By check and by a report's page, where the model is named in a budget."""
    monkeypatch.chdir(tmp_path)
    assert run("init", str(SANTACODER), "--machine", "h100", "--ctx", "2048")[0] == 0
    said = "custom code: the repository has a class of its own"
    assert said in " ".join(run("check")[1].split())
    assert ask("check")[1]["budgets"][0]["notes"][0].startswith(said)
    assert run("report", "budgets", "-o", "page.html")[0] == 0
    assert said in Path("page.html").read_text(encoding="utf-8")
