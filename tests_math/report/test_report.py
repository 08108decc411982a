"""The page of a run or of budgets: what it says, that it says it safely, and how the command ends."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from membudget.cli.main import main
from membudget.history import Entry, Line, Record, append
from membudget.machines import get
from membudget.measure.comparison import Comparison, Row
from membudget.report import run_page, samples, story
from membudget.report.story import Told
from membudget.report.worksheet import markdown
from membudget.units import GIB, MIB

pytestmark = pytest.mark.suite

SETTINGS = {
    "model": "meta-llama/Llama-3.1-8B",
    "format": "bf16",
    "kv_cache_dtype": "bf16",
    "ctx": 8192,
    "users": 8,
    "machine": "dgx-spark",
    "engine": "vllm",
    "caches": ["full"],
}
#: 32 layers x 2 x 8 KV heads x 128 x 2 bytes; and half as much again, a cache that keeps too much.
SLOPE, TOO_MUCH = 131_072, 196_608
WEIGHTS = 16_060_522_496


def run(day: int, engine: str, slope: int = SLOPE, name: str = "llama-3.1-8b-bf16.dgx-spark") -> Record:
    """One night on a Spark."""
    lines = {
        "weights": Line(WEIGHTS, WEIGHTS + 4096, allowed="within +64 MiB"),
        "kv_cache": Line(8 * 8192 * SLOPE, 8 * 8192 * slope, allowed="within 1%"),
        "activations": Line(977_338_368),
        "overhead": Line(23 * GIB // 2),
        "kv_growth": Line(SLOPE, slope, allowed="within 1%"),
        "fragmentation_dynamic": Line(None, 300 * MIB + day * MIB, allowed="below 1 GiB"),
        "fragmentation_static": Line(None, None, allowed="below 1 GiB"),
        "max_users": Line(94, 94 if slope == SLOPE else 61, "count"),
    }
    failed = slope != SLOPE
    why = "kv_cache is 4.00 GiB over: 12.00 GiB measured, 8.00 GiB predicted (allowed within 1%)" if failed else ""
    return Record(
        f"202611{day:02}-040000-abc123",
        f"2026-11-{day:02}T04:00:00.000000Z",
        "pytest -m spark",
        {"name": "spark", "title": "NVIDIA GB10", "memory": 130_663_165_952, "driver": "580.173.02"},
        {"vllm": engine, "transformers": "5.24.0"},
        {name: Entry("failed" if failed else "passed", lines, SETTINGS, why)},
    )


RUNS = (run(2, "0.30.0"), run(9, "0.31.0"), run(16, "0.31.0"), run(23, "0.32.0", TOO_MUCH))


def capacity(name: str) -> int:
    """The shipped machine's memory."""
    return get(name).memory


def told(runs: tuple[Record, ...] = RUNS) -> Told:
    """The budget of the last night."""
    return story.of_record(runs[-1], runs, capacity).told[0]


def test_drift_is_told_by_line_and_run() -> None:
    """The cache's slope over four nights, oldest first, each with its engine's version."""
    courses = {course.line: course for course in told().courses}
    assert [value for _, value in courses["kv_growth"].values] == [SLOPE, SLOPE, SLOPE, TOO_MUCH]
    assert courses["kv_growth"].values[3][0] == "2026-11-23, vllm 0.32.0, transformers 5.24.0"
    page = run_page.render(story.of_record(RUNS[-1], RUNS, capacity))
    assert "+64.00 KiB (+50.0%)" in page
    assert "kv_cache is 4.00 GiB over" in page


def test_later_runs_and_other_sources_are_left_out() -> None:
    """The report of the second night knows two nights, and none of another tier."""
    other = run(1, "0.29.0")._replace(source="pytest -m cpu", id="other")
    found = story.of_record(RUNS[1], (other, *RUNS), capacity)
    assert {len(course.values) for course in found.told[0].courses} == {2}


def test_bars_stand_against_the_machine() -> None:
    """On 121.69 GiB the predicted weights are 12.29% wide, and what was not measured is an outline."""
    page = run_page.render(story.of_record(RUNS[-1], RUNS, capacity))
    weights = re.search(r'<rect class="part weights" x="[\d.]+%" y="20" width="([\d.]+)%"', page)
    assert weights is not None
    assert float(weights[1]) == pytest.approx(100 * WEIGHTS / 130_663_165_952, abs=0.001)
    assert 'class="part activations guess"' in page
    assert "without overhead and activations" in page


def test_growth_bends_where_a_window_is_full() -> None:
    """gemma-3-27b keeps 1,024 tokens in 52 of its 62 layers: 62 layers grow at first, 10 afterwards."""
    settings = {**SETTINGS, "model": "google/gemma-3-27b-it", "caches": ["full", "sliding"]}
    entry = RUNS[0].budgets["llama-3.1-8b-bf16.dgx-spark"]._replace(settings=settings)
    record = RUNS[0]._replace(budgets={"gemma": entry})
    growth = story.of_record(record, (record,), capacity).told[0].growth
    assert growth is not None
    layer = 2 * 16 * 128 * 2
    assert (growth.slope, growth.slope_end) == (62 * layer, 10 * layer)
    assert dict(growth.predicted)[1024] == 1024 * 62 * layer
    assert growth.predicted[-1] == (8192, 1024 * 62 * layer + 7168 * 10 * layer)


def test_growth_of_an_unknown_model_is_not_guessed() -> None:
    """Without the model a sliding cache has a slope and no line; a full one is straight."""
    lost = {**SETTINGS, "model": "nobody/has-this"}
    for caches, points in ((["full"], ((0, 0), (8192, 8192 * SLOPE))), (["full", "sliding"], ())):
        entry = RUNS[0].budgets["llama-3.1-8b-bf16.dgx-spark"]._replace(settings={**lost, "caches": caches})
        record = RUNS[0]._replace(budgets={"b": entry})
        growth = story.of_record(record, (record,), capacity).told[0].growth
        assert growth is not None
        assert growth.predicted == points


def test_page_is_well_formed_and_asks_for_nothing() -> None:
    """Every element is closed; no script, no address, no inline style; a policy that allows the style sheet alone."""
    page = run_page.render(story.of_record(RUNS[-1], RUNS, capacity))
    body = page[page.index("<body>") : page.index("</body>") + 7]
    ET.fromstring(re.sub(r" open>", ' open="">', body))
    assert "default-src 'none'; style-src 'sha256-" in page
    assert "script-src" not in page
    assert "<script" not in page
    assert not re.search(r"""https?://|\bsrc=|\son\w+=|style=["']|url\(|@import""", page)


@pytest.mark.parametrize(
    "evil", ["<img src=x onerror=alert(1)>", '"><script>alert(1)</script>', "a&b\x00\x1b[31m\u202e"]
)
def test_names_from_outside_are_text(evil: str) -> None:
    """A budget, machine, version or reason that looks like HTML stays text, everywhere."""
    entry = Entry("failed", {evil: Line(1, 2)}, {**SETTINGS, "model": evil, "machine": evil}, evil)
    record = RUNS[0]._replace(
        machine={"name": evil, "title": evil}, versions={evil: evil}, budgets={evil: entry}, skipped={evil: evil}
    )
    page = run_page.render(story.of_record(record, (record, record._replace(id="b")), lambda name: None))
    assert "<img" not in page
    assert "<script" not in page
    assert not re.search("[\x00\x1b\u202e]", page)


def test_command_reports_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record file gives a page; the exit code says that something in it failed."""
    for record in RUNS:
        path = append(record, str(tmp_path / "runs"))
    target = tmp_path / "out.html"
    assert main(["report", path, "-o", str(target)]) == 1
    assert "1 budget, 1 failed" in capsys.readouterr().out
    assert "NVIDIA GB10" in target.read_text(encoding="utf-8")
    assert main(["report", "vllm==0.31.0", "--runs", str(tmp_path / "runs"), "-o", str(target)]) == 0
    assert "2026-11-16" in target.read_text(encoding="utf-8")


def test_command_reports_budgets(tmp_path: Path, budget_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Budgets alone are predictions: nothing is called measured, and what fails is said with both numbers."""
    target = tmp_path / "out.html"
    assert main(["report", str(budget_file), "-o", str(target), "--json"]) == 1
    assert '"failed": 1' in capsys.readouterr().out
    page = target.read_text(encoding="utf-8")
    assert "not as expected" in page
    assert "params: 8,030,261,248 predicted, 8,030,261,249" in page
    assert "not measured" not in page


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["no-such-run"], 3, "no run is recorded; `pytest --membudget-record` makes one"),
        (["no/such.jsonl"], 3, "no/such.jsonl"),
        (["no/such.yaml"], 2, "no/such.yaml"),
    ],
)
def test_command_refuses(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no run is an error that says so, and no page is written."""
    assert main(["report", *words, "--runs", str(tmp_path / "none"), "-o", str(tmp_path / "x.html")]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


@pytest.fixture
def budget_file(tmp_path: Path) -> Path:
    """A budget whose author is wrong by one parameter."""
    content: dict[str, Any] = {"model": SETTINGS["model"], "format": "bf16", "kv_cache_dtype": "bf16", "ctx": 8192}
    content |= {"users": 8, "machine": "dgx-spark"}
    text = "\n".join(f"{name}: {value}" for name, value in content.items())
    file = tmp_path / "wrong.yaml"
    file.write_text(f"{text}\nexpect:\n  params: 8_030_261_249\n", encoding="utf-8")
    return file


#: Prompts of 2,048, 4,096 and 8,192 tokens, four at once, on an allocator that rounds to 512 bytes.
GROWN = {
    "tokens": [2048, 4096, 8192],
    "batch": [4, 4, 4],
    "held": [4 * tokens * SLOPE + 512 for tokens in (2048, 4096, 8192)],
}


def stepped(*spare: int | None) -> dict[str, list[int | None]]:
    """A fragmentation measurement every 250 steps, with so much reserved beside what is allocated."""
    total = [WEIGHTS + number * 250 * 8 * SLOPE for number in range(1, len(spare) + 1)]
    return {
        "step": [250 * number for number in range(1, len(spare) + 1)],
        "total": list(total),
        "allocated": [size - WEIGHTS for size in total],
        "reserved": [None if more is None else size + more for size, more in zip(total, spare, strict=True)],
    }


def sampled(found: dict[str, dict[str, list[int | None]]]) -> story.Story:
    """The story of one night with samples in its record."""
    entry = RUNS[0].budgets["llama-3.1-8b-bf16.dgx-spark"]._replace(samples=found)
    record = RUNS[0]._replace(budgets={"llama": entry})
    return story.of_record(record, (record,), capacity)


def test_measured_points_stand_on_the_growth_line() -> None:
    """Each prompt's cache is a dot: one user's share, at the height of the predicted line."""
    found = sampled({"kv_growth": GROWN})  # type: ignore[dict-item]
    growth = found.told[0].growth
    assert growth is not None
    assert growth.points == tuple((tokens, tokens * SLOPE + 128) for tokens in (2048, 4096, 8192))
    page = run_page.render(found)
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5"><title>([^<]+)</title>', page)
    assert dots[0][2] == "268,435,584 B at 2,048 tokens, measured"
    # 80 to 428 wide for 8,192 tokens, 200 to 16 high for the largest
    assert [float(x) for x, _, _ in dots] == pytest.approx([167, 254, 428], abs=0.1)
    assert [float(y) for _, y, _ in dots] == pytest.approx([154, 108, 16], abs=0.1)
    assert "dots: what 3 prompts of growing length held" in page


def test_measured_points_are_drawn_without_the_model() -> None:
    """A record whose model is not here still shows what was measured, and says that the prediction is not drawn."""
    entry = RUNS[0].budgets["llama-3.1-8b-bf16.dgx-spark"]
    settings = {**entry.settings, "model": "a/model-that-is-not-here", "caches": ["sliding"]}
    lines = {**entry.lines, "kv_growth": Line(SLOPE, SLOPE)}
    entry = entry._replace(samples={"kv_growth": GROWN}, settings=settings, lines=lines)
    record = RUNS[0]._replace(budgets={"llama": entry})
    page = run_page.render(story.of_record(record, (record,), capacity))
    assert len(re.findall(r"<circle[^>]*><title>[^<]+, measured", page)) == 3
    assert f"{SLOPE:,} B a token predicted (not drawn: the model is not here)" in page
    assert 'class="line kv_cache"' not in page


def test_measured_slope_keeps_its_intercept() -> None:
    """A cache that takes 1 GiB once and grows as predicted is a parallel line above, not a steeper one."""
    more = {**GROWN, "held": [size + 4 * GIB for size in GROWN["held"]]}
    page = run_page.render(sampled({"kv_growth": more}))  # type: ignore[dict-item]
    lines = re.findall(r'<path class="line (?:kv_cache|seen)"[^>]* d="M([^"]+)"', page)
    ends = [[tuple(map(float, point.split())) for point in line.split("L")] for line in lines]
    slopes = [(last[1] - first[1]) / (last[0] - first[0]) for first, last in ((line[0], line[-1]) for line in ends)]
    assert slopes[0] == pytest.approx(slopes[1], rel=0.01)
    assert ends[1][0][0] == pytest.approx(167, abs=0.1)


def test_fragmentation_is_drawn_by_step() -> None:
    """Reserved less allocated with each kind of cache: three lines that are told apart without colour, with labels."""
    found = sampled(
        {
            "fragmentation_dynamic": stepped(100 * MIB, 300 * MIB),
            "fragmentation_static": stepped(0, 0),
            "fragmentation_expandable": stepped(50 * MIB, 60 * MIB),
        }
    )
    page = run_page.render(found)
    assert "dynamic: 300.00 MiB reserved, not allocated after 500 steps" in page
    for kind in ("dynamic", "static", "expandable"):
        assert f'<path class="line {kind}"' in page
        assert f">{kind}</text>" in page
    heights = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)">(?:dynamic|static|expandable)<', page)]
    assert all(abs(one - two) >= 12 for one, two in itertools.pairwise(heights))
    ET.fromstring(re.sub(r" open>", ' open="">', page[page.index("<body>") : page.index("</body>") + 7]))


def test_without_a_caching_allocator_the_page_says_why() -> None:
    """On the CPU nothing reserves: what is allocated is drawn, and the reason stands beside it."""
    page = run_page.render(sampled({"fragmentation_dynamic": stepped(None, None)}))
    assert "This device has no caching allocator" in page
    assert "dynamic: 500.00 MiB allocated after 500 steps" in page


def test_fragmentation_as_text() -> None:
    """The worksheet draws a block a step, or ASCII where blocks do not arrive; Markdown has a row a step."""
    seen: list[dict[str, int | None]] = [
        {"step": 250, "total": 5 * GIB, "allocated": GIB, "reserved": 5 * GIB},
        {"step": 500, "total": 6 * GIB, "allocated": 2 * GIB, "reserved": 6 * GIB + 400 * MIB},
    ]
    rows = [Row("fragmentation_dynamic", "fragmentation", None, samples=tuple(seen))]
    drawn = "fragmentation: reserved and not allocated\n  dynamic  ▁█  0 B at step 250, 400.00 MiB at step 500"
    assert "\n".join(samples.lines(rows)) == f"{drawn}, most 400.00 MiB"
    assert "  dynamic  _#  " in samples.lines(rows, unicode=False)[1]
    page = markdown([Comparison("llama", tuple(rows))], "Worksheets")
    assert "| 500 | 419,430,400 B |" in page
    unknown = [Row("fragmentation_static", "fragmentation", None, samples=({**seen[0], "reserved": None},))]
    assert "no caching allocator" in samples.lines(unknown)[0]
    assert samples.lines([]) == []


@pytest.mark.parametrize("log", sorted((Path(__file__).parents[2] / "fixtures" / "logs" / "cpu").glob("*.log"))[::4],
                         ids=lambda path: path.stem)  # fmt: skip
def test_a_log_is_a_page(log: Path, tmp_path: Path) -> None:
    """Also of a start that printed nothing of weights, or was refused: measured lines alone."""
    page = tmp_path / "log.html"
    assert main(["report", str(log), "-o", str(page)]) in (0, 1)
    assert "</html>" in page.read_text(encoding="utf-8")
