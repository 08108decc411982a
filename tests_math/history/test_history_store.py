"""Records on disk: nothing is lost to a crash, to other writers or to an unknown schema."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from membudget.history import Entry, Line, Record, RecordError, append, make, read, read_folder
from membudget.history import record as schema
from membudget.history.record import SCHEMA, WHOLE, from_json
from membudget.history.recorder import merged
from membudget.history.store import file_of
from membudget.measure.comparison import Row

pytestmark = pytest.mark.suite
#: For processes of their own: they find membudget, and their records lie in box.jsonl.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "MEMBUDGET_MACHINE": "box"}


def run(number: int = 0, **more: Any) -> Record:
    """A small record."""
    lines = {"weights": Line(10 + number, 10 + number), "kv_cache": Line(2**33, 2**33 + number, "bytes", "within 1%")}
    values: dict[str, Any] = {
        "id": f"20261130-0000{number:02}-abc",
        "time": f"2026-11-30T00:00:{number:02}.000000Z",
        "source": "pytest -m spark",
        "machine": {"name": "box", "memory": 2**37},
        "versions": {"torch": "2.13.0", "membudget": "0.1.0"},
        "budgets": {"llama.box": Entry("passed", lines, {"ctx": 8192})},
    }
    return Record(**(values | more))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every field comes back, and the file's name is the machine's."""
    first = run(1, flags={"PYTORCH_ALLOC_CONF": "x"}, commit="abc", reference="a new driver", skipped={"b": "no model"})
    path = append(first, str(tmp_path))
    append(run(2), str(tmp_path))
    assert Path(path).name == "box.jsonl"
    found = read(path)
    assert found.records == (first, run(2))
    assert not found.problems


@given(st.text(max_size=20), st.integers(-(2**63), 2**63), st.sampled_from(["bytes", "count"]))
def test_any_name_and_number_survive(name: str, value: int, unit: str) -> None:
    """A record is the same after JSON, whatever its budgets are called; only sizes are never negative."""
    assume(value >= 0 or name not in WHOLE)
    record = run(budgets={name: Entry("recorded", {name: Line(value, None, unit)}, {name: name})})
    assert from_json(json.loads(json.dumps(record.as_json()))) == record


def test_samples_come_back_and_unknown_stays_unknown() -> None:
    """What a line was measured at is in the record: columns of numbers, null where the device does not say."""
    samples: dict[str, schema.Samples] = {
        "kv_growth": {"tokens": [64, 128], "batch": [3, 3], "held": [393_216, 786_432]},
        "fragmentation_dynamic": {"step": [1, 2], "total": [10, 20], "allocated": [1, 11], "reserved": [None, None]},
    }
    entry = run().budgets["llama.box"]._replace(samples=samples)
    record = run(budgets={"llama.box": entry})
    raw = json.loads(json.dumps(record.as_json()))
    assert raw["schema"] == SCHEMA
    assert from_json(raw) == record


def test_a_prediction_stays_beside_its_measurement() -> None:
    """A measured line was judged against its own prediction; the bare ledger's, told later or before, is another."""
    measured, bare = {"weights": Line(104, 104, "bytes", "exact")}, {"weights": Line(100)}
    assert merged(measured, bare) == merged(bare, measured) == measured
    assert merged({"weights": Line(None, 104)}, bare) == {"weights": Line(100, 104)}


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        (Line(100, 101, "bytes", "within 1%"), True),
        (Line(100, 102, "bytes", "within 1%"), False),
        (Line(None, 2**30, "bytes", "below 1 GiB"), False),
        (Line(None, 2**30 - 1, "bytes", "below 1 GiB"), True),
        (Line("fits", "out_of_memory", "word", "exact"), False),
        (Line(5300, 5301, "x100", "within 1"), True),
        (Line(100, 200), None),
        (Line(100, None, "bytes", "exact"), None),
        (Line(None, 7, "count", "exact"), None),
    ],
)
def test_a_line_is_judged_by_its_own_numbers(line: Line, holds: bool | None) -> None:
    """As near as it allows; None where nothing was measured, predicted or allowed."""
    assert line.holds is holds
    record = run(budgets={"llama.box": Entry("passed", {"a": line})})
    assert from_json(record.as_json()).green is (holds is not False)


def test_a_tolerance_that_is_none_is_refused() -> None:
    """What cannot be judged is not believed."""
    record = run(budgets={"llama.box": Entry("passed", {"a": Line(1, 2, "bytes", "roughly")})})
    with pytest.raises(RecordError, match=r"budgets\.llama\.box\.lines\.a\.allowed: 'roughly' is not a tolerance"):
        from_json(record.as_json())


def test_samples_are_made_of_rows() -> None:
    """Rows of a measurement become columns; rows without samples are left out."""
    seen = ({"tokens": 64, "batch": 3, "held": 10}, {"tokens": 128, "batch": 3, "held": 20})
    rows = [Row("kv_growth", "growth", 1, samples=seen), Row("weights", "weights", 1)]
    assert schema.samples_of(rows) == {"kv_growth": {"tokens": [64, 128], "batch": [3, 3], "held": [10, 20]}}


def test_a_torn_line_is_named_and_kept(tmp_path: Path) -> None:
    """A record cut in the middle: the others are read, it is named, and put aside before the next is written."""
    path = Path(append(run(1), str(tmp_path)))
    whole = path.read_bytes()
    torn = json.dumps(run(2).as_json()).encode()[:100]
    path.write_bytes(whole + torn)
    found = read(str(path))
    assert [record.id for record in found.records] == [run(1).id]
    assert [(problem.line, problem.torn) for problem in found.problems] == [(2, True)]
    append(run(3), str(tmp_path))
    assert [record.id for record in read(str(path)).records] == [run(1).id, run(3).id]
    aside = list(tmp_path.glob("box.jsonl.torn-*"))
    assert [place.read_bytes() for place in aside] == [torn]
    folder = read_folder(str(tmp_path))
    assert len(folder.records) == 2
    assert [problem.path for problem in folder.problems] == [str(aside[0])]


def test_a_whole_line_without_its_end_is_a_record(tmp_path: Path) -> None:
    """A crash just before the end of line loses nothing."""
    path = Path(append(run(1), str(tmp_path)))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    append(run(2), str(tmp_path))
    found = read(str(path))
    assert [record.id for record in found.records] == [run(1).id, run(2).id]
    assert not found.problems


@pytest.mark.parametrize("cut", range(0, 400, 13))
def test_any_cut_is_mended(tmp_path: Path, cut: int) -> None:
    """Wherever the file was cut, what was whole is read and the next record follows."""
    path = Path(append(run(1), str(tmp_path)))
    append(run(2), str(tmp_path))
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    before = {record.id for record in read(str(path)).records}
    append(run(3), str(tmp_path))
    found = read(str(path))
    assert {record.id for record in found.records} == before | {run(3).id}
    assert not found.problems
    kept = b"".join(place.read_bytes() for place in tmp_path.glob("*.torn-*"))
    assert path.read_bytes().replace(b"\n", b"").startswith(content[: cut - len(kept)].replace(b"\n", b""))


def test_damage_in_the_middle_hides_nothing(tmp_path: Path) -> None:
    """Conflict markers of a merge, binary dirt, a list: each is named by its line, the records are read."""
    path = Path(append(run(1), str(tmp_path)))
    with path.open("ab") as file:
        file.write(b"<<<<<<< HEAD\n\xff\xfe\x00\n[1]\n\n" + b"[" * 100_000 + b"\n")
    append(run(2), str(tmp_path))
    found = read(str(path))
    assert [record.id for record in found.records] == [run(1).id, run(2).id]
    assert [problem.line for problem in found.problems] == [2, 3, 4, 6]
    assert not any(problem.torn for problem in found.problems)


@pytest.mark.parametrize("number", [SCHEMA + 1, 0, -1, "1", None, True, 1.0])
def test_another_schema_is_refused_by_name(number: object) -> None:
    """A newer or older schema, and what is no number: the message says which it is."""
    raw = run().as_json() | {"schema": number}
    with pytest.raises(RecordError, match=f"schema (is )?{number!r}"):
        from_json(raw)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"extra": 1}, "unknown field 'extra'"),
        ({"id": 7}, "id is 7"),
        ({"versions": {"torch": 2}}, "versions"),
        ({"machine": []}, "machine is a list"),
        ({"commit": 7}, "commit"),
        ({"budgets": {"a": {"verdict": "fine", "lines": {}}}}, "budgets.a.verdict is 'fine'"),
        ({"budgets": {"a": {"verdict": "passed"}}}, "budgets.a is not an object"),
        ({"budgets": {"a": {"verdict": "passed", "lines": {"w": {"measured": 1.5}}}}}, "lines.w.measured is 1.5"),
        ({"budgets": {"a": {"verdict": "passed", "lines": {"w": {"measured": True}}}}}, "lines.w.measured is True"),
        ({"budgets": {"a": {"verdict": "passed", "lines": {"w": {"unit": "GB"}}}}}, "unit is one of"),
        ({"budgets": {"a": {"verdict": "passed", "lines": {"w": {"off": 1}}}}}, "lines.w is not an object"),
        ({"budgets": {"a": {"verdict": "passed", "lines": {}, "samples": []}}}, "a.samples is a list"),
        ({"budgets": {"a": {"verdict": "passed", "lines": {}, "samples": {"w": {"x": 1}}}}}, "not a table of columns"),
        ({"budgets": {"a": {"verdict": "passed", "lines": {}, "samples": {"w": {"x": [1.5]}}}}}, "samples.w.x has 1.5"),
        (
            {"budgets": {"a": {"verdict": "passed", "lines": {}, "samples": {"w": {"x": [1], "y": []}}}}},
            "not of one length",
        ),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], said: str) -> None:
    """A record is read whole or not at all; the message names the field."""
    with pytest.raises(RecordError, match=said):
        from_json(run().as_json() | change)


def test_nothing_half_is_written(tmp_path: Path) -> None:
    """What could not be read again (a float, a lone surrogate's cousin NaN) is refused before the file is touched."""
    bad = run(budgets={"a": Entry("passed", {"w": Line(1.5)})})  # type: ignore[arg-type]
    with pytest.raises(RecordError):
        append(bad, str(tmp_path))
    with pytest.raises(ValueError, match="JSON"):
        append(run(machine={"name": "box", "load": float("nan")}), str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "NVIDIA GB10", "C:\\x"])
def test_a_machine_is_never_a_path(tmp_path: Path, name: str) -> None:
    """Whatever a machine is called, its file lies in the folder."""
    assert Path(file_of(str(tmp_path), name)).parent == tmp_path


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line that the disk took is cut off again."""
    path = Path(append(run(1), str(tmp_path)))
    before = path.read_bytes()
    write = os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return write(handle, data[:30])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        append(run(2), str(tmp_path))
    monkeypatch.undo()
    assert path.read_bytes() == before


WRITER = """
import json, sys
from membudget.history.store import append_line
for index in range(25):
    append_line(sys.argv[1], json.dumps({"writer": sys.argv[2], "index": index, "fill": "x" * 20_000}).encode())
"""


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    """Four processes write 25 long lines each into one file: a hundred whole lines."""
    path = str(tmp_path / "box.jsonl")
    names = ["a", "b", "c", "d"]
    started = [subprocess.Popen([sys.executable, "-c", WRITER, path, name], env=ENVIRONMENT) for name in names]
    assert [process.wait(120) for process in started] == [0, 0, 0, 0]
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    assert sorted((line["writer"], line["index"]) for line in lines) == [
        (name, number) for name in names for number in range(25)
    ]


KILLED = """
import sys
from membudget.history import Entry, Line, append, make
lines = {f"line{i}": Line(i, i) for i in range(4000)}
record = make("killed", {"budget": Entry("passed", lines)}, versions={}, root=sys.argv[2])
print("ready", flush=True)
for number in range(10**6):
    append(record._replace(id=f"{record.id}-{number}"), sys.argv[1])
    print(number, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is not of this system")
def test_sigkill_at_any_moment_leaves_a_readable_record(tmp_path: Path) -> None:
    """A writer is killed twelve times at random moments: what it said was written is there, and all is readable."""
    rng = random.Random(7)
    promised = 0
    for _ in range(12):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == b"ready"
            time.sleep(rng.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            promised += len(process.stdout.read().split(b"\n")) - 1
        found = read(str(tmp_path / "box.jsonl")) if (tmp_path / "box.jsonl").exists() else None
        assert found is None or all(problem.torn for problem in found.problems)
        assert (0 if found is None else len(found.records)) >= promised
    append(run(1), str(tmp_path))
    found = read(str(tmp_path / "box.jsonl"))
    assert not found.problems
    assert run(1) in found.records


def test_a_record_says_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine, versions, flags: what can move bytes is in every record, and no other variable."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    record = make("test", {"b": Entry("passed", {})}, root=str(tmp_path))
    assert {"membudget", "python"} <= set(record.versions)
    assert record.flags["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "secret" not in json.dumps(record.as_json())
    assert {"name", "title", "kernel", "arch"} <= set(record.machine)
    assert record.commit == ""


def test_the_commit_is_in_it(tmp_path: Path) -> None:
    """A project in git: its commit, and that files differ from it."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    try:
        subprocess.run([*git, "init", "-q"], check=True)
    except OSError:
        pytest.skip("git is not installed")
    (tmp_path / "file").write_text("a")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]
    assert make("test", {}, root=str(tmp_path)).commit == head
    (tmp_path / "file").write_text("b")
    assert make("test", {}, root=str(tmp_path)).commit == f"{head}-dirty"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is not of this system")
def test_two_runs_at_once_and_one_is_killed(tmp_path: Path) -> None:
    """Three pytest runs record into one folder, one is killed on the way: the others' records are there, whole."""
    text = "model: Qwen/Qwen3-8B\nformat: bf16\nkv_cache_dtype: bf16\nctx: [1024, 2048]\nusers: [1, 2, 3, 4, 5]\n"
    (tmp_path / "few.yaml").write_text(text + "machine: h100\nengine: {vllm: {}}\n", encoding="utf-8")
    words = ["--pyargs", "membudget.tests", "-m", "math", "-p", "no:cacheprovider", "--membudget-record"]
    words += ["--membudget-compare=last", "--membudget-runs=runs", "--membudget-budgets=few.yaml"]
    command = [sys.executable, "-m", "pytest", "-p", "membudget.pytest_plugin.plugin", *words]
    runs = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT)
        for _ in range(3)
    ]
    assert runs[0].stdout is not None
    while b"test session starts" not in runs[0].stdout.readline():
        assert runs[0].poll() is None
    runs[0].kill()
    said = [process.communicate(timeout=120)[0].decode() for process in runs]
    assert [process.returncode for process in runs] == [-signal.SIGKILL, 0, 0], said
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    found = read(str(path))
    assert not found.problems
    assert len(found.records) == 2
    assert all(record.green and len(record.budgets) == 10 for record in found.records)


@pytest.mark.slow
def test_a_history_of_ten_thousand_runs(tmp_path: Path) -> None:
    """It is read in less than a millisecond a run, and most of what is kept is kept once."""
    import tracemalloc

    source = Path(__file__).parents[2] / "fixtures" / "history" / "xeon-2core.jsonl"
    record = json.loads(source.read_text(encoding="utf-8").splitlines()[-4])
    with (tmp_path / "xeon-2core.jsonl").open("w", encoding="utf-8") as file:
        for number in range(10_000):
            print(json.dumps({**record, "id": f"20200101-{number:06}"}), file=file)
    before = time.process_time()
    found = read_folder(str(tmp_path))
    assert time.process_time() - before < 20
    assert (len(found.records), found.problems) == (10_000, ())
    tracemalloc.start()
    read_folder(str(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000 * 16_000
