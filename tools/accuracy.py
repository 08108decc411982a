"""Write docs/accuracy.md and its pictures from the public starts: `python tools/accuracy.py`."""

from __future__ import annotations

import statistics
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.engines.vllm.versions import parse  # noqa: E402
from tests_math.engines.vllm import profile_rows as starts  # noqa: E402
from tests_math.engines.vllm.profile_rows import Scored  # noqa: E402

PAGE = ROOT / "docs" / "accuracy.md"
PICTURES = ROOT / "docs" / "images"
#: Per theme: ink, soft ink, lines, paper, dots of the starts the rules were made with, of the fresh ones.
_INKS = ("ink", "soft", "line", "paper", "old", "new")
THEMES = {
    "light": dict(zip(_INKS, ("#1f2328", "#6e7781", "#d0d7de", "#ffffff", "#0b7d72", "#c2410c"), strict=True)),
    "dark": dict(zip(_INKS, ("#e6edf3", "#9198a1", "#3d444d", "#0d1117", "#2dd4bf", "#fb923c"), strict=True)),
}
NAMES = {
    "weights": "weights",
    "activation": "peak activation",
    "non_torch": "outside torch",
    "graphs": "CUDA graphs, the estimate",
    "available": "for the KV cache",
}
#: Why a start is off by more than 1% of its device, or outside its range; every such start needs its line here.
WHY = {
    "VL49": "two hosts: NCCL over a network kept 0.9 GiB more, which its range has from this very start",
    "granite": "another 0.2 GiB outside torch than the 45 other starts of that campaign printed; not known why",
    "dtf32": "float32: the sampler's peak is 0.4 GiB more than its buffers add up to; the range holds it now",
    "tp1pp2": "its figure is the first stage's; first written down was the least of the stages",
    "tp1pp4": "its figure is the first stage's; first written down was the least of the stages",
    "F01": "compiled at this start: no rule knew what that takes",
    "F02": "likely compiled at this start, not said: the figure is a warm start's; the range holds it now",
    "F05": "0.9 of no RTX 4090 holds these weights and this cache: the report's utilization or model is another",
    "F09": "0.11 GiB less at the peak than the forward of EXAONE 4 adds up to",
    "F10": "a development build with LMCache, whose buffers are not known here",
    "F11": "Marlin's layout of MXFP4: 0.7 GiB more than the middle of the two kernels'",
    "F12": "likely compiled at this start, not said: the figure is a warm start's; the range holds it now",
    "F13": "a card of 6 GiB whose CUDA total is not printed: 5.93 GiB by these figures, 5.5 assumed",
    "F14": "the video encoder at 262,144 tokens of context takes 2 GiB more than its recipe; not known why",
    "J02": "Gemma 4: a copy of the table too much, and a rotary table and 0.3 GiB of weights too few",
    "J06": "Gemma 4, FP8 made while loading: a copy of the table too much, its rotary table too little",
    "J08": "its batch is not said: as vLLM's LLM class takes it; FP8 made while loading",
    "S01": "a video of 114,688 tokens: its encoder takes 1.3 GiB more than its recipe; inside the range",
    "S02": "2.1 GiB more than the parts: compiled or not is not said, and the report prints no parts",
    "S03": "0.6 GiB more than the parts: as S02, each of two ranks",
    "G01": "GB10",
    "G02": "GB10",
    "G03": "GB10: another image on the same machine left 3.4 GiB less than G02's",
    "G04": "GB10",
    "G05": "GB10, version and batch not said",
}
HEAD = """\
# KV cache memory, predicted and printed

Made by `tools/accuracy.py`. Public logs of vLLM on real GPUs print what each start had left for its KV cache; beside it
stands what `membudget` says of the same settings without a GPU. The starts, with sources, are in
`fixtures/logs/available_kv`. All are other people's: none was run for this page.

"Off" is predicted less printed. A log prints GiB with two decimals, so 0.01 GiB is the least that means anything.
"""

LACKING = (
    "collected starts do not say enough: most often the model's config, or max_num_seqs and max_num_batched_tokens, "
    "are missing. Their figures are kept."
)
MISSING = (
    "Whether a start compiles its model is rarely printed. Where it is not said the figure is a warm start's, and the "
    "range reaches to the cold one's: at most one more copy of the embedding table. Qwen3-8B AWQ with 0.31.0 on an RTX "
    "5070 Ti had 4.34 GiB cold and 5.47 warm; its table is 1.16.",
    "The estimate of the graphs is what the driver's free memory says: it moves in steps of 20 MiB times the number of "
    "graphs, where an allocation falls into one of the two that are measured.",
    "Encoders have recipes for Gemma 3, Mistral 3, Llama 4, Kimi-VL and Qwen 2-VL to 3.5; others are left out, and the "
    "note `encoder_unknown` says so.",
    "Not in the parts: a drafter's weights and graphs, what LMCache and other connectors keep, NCCL "
    "between hosts beyond one start's, sleep mode.",
    "What a kernel keeps of quantized weights is counted by vLLM's own preparation for Marlin, Machete and CUTLASS "
    "(fixtures/oracle/loaded_weights.json); kernels that a user picks by hand, DeepGEMM's, TRT-LLM's and Humming's "
    "layouts are not.",
)


class Row(NamedTuple):
    """One line of a table of starts."""

    name: str
    model: str
    version: str
    device: str
    predicted: float
    printed: float
    share: float
    inside: bool


def main() -> None:
    """Write the page and its pictures."""
    PAGE.write_text(page(), encoding="utf-8")
    for theme in THEMES:
        picture_of(theme).write_text(picture(theme), encoding="utf-8")
    print(f"wrote {PAGE.name}")


def picture_of(theme: str) -> Path:
    """Where the picture of that theme is."""
    return PICTURES / f"accuracy-{theme}.svg"


_kept: dict[str, list[Scored]] = {}


def known() -> list[Scored]:
    """The starts that the rules were made with, without repeats."""
    if "known" not in _kept:
        _kept["known"] = [each for each in starts.scored() if not each.duplicate]
    return _kept["known"]


def new() -> list[Scored]:
    """The fresh starts by today's rules, GB10 among them."""
    if "new" not in _kept:
        _kept["new"] = list(starts.scored(starts.fresh()))
    return _kept["new"]


def first() -> list[Row]:
    """The fresh starts as they were predicted, before their figures were joined to them."""
    said = {row["id"]: row for row in starts.rows("fresh_predictions.jsonl")}
    out = []
    for row in starts.fresh():
        mine, printed = said[row["id"]], row["printed"]["available"]
        inside = mine["low"] - 0.005 <= printed <= mine["high"] + 0.005
        share = (mine["available"] - printed) / mine["total"]
        out.append(Row(row["id"], _model(row), row["vllm"], row["machine"], mine["available"], printed, share, inside))
    return out


def page() -> str:
    """The page's text."""
    old, fresh, said = known(), new(), first()
    apart = [row for row in said if row.device == "dgx-spark"]
    later, third, named = ([row for row in said if row.name.startswith(letter)] for letter in "HJS")
    cards = [row for row in said if row not in apart + later + third + named]
    fresh_cards = [each for each in fresh if each.row["machine"] != "dgx-spark"]
    unnamed = [each for each in fresh_cards if not each.row["id"].startswith("S")]
    fresh_apart = [each for each in fresh if each.row["machine"] == "dgx-spark"]
    parts = [HEAD, "## Score", ""]
    parts += _table(
        ("starts", "number", "within 1% of the device", "median off, GiB", "largest off, GiB", "in the range"),
        [
            ("the rules were made with these", *_score(map(_row, old))),
            ("fresh, as first predicted", *_score(cards)),
            ("fresh, a second time, as first predicted", *_score(later)),
            ("fresh, a third time, as first predicted", *_score(third)),
            ("fresh, all of these, with what they taught", *_score(map(_row, unnamed))),
            ("named where rules were sought, as first predicted", *_score(named)),
            ("fresh, GB10, as first predicted", *_score(apart)),
            ("fresh, GB10, with what they taught", *_score(map(_row, fresh_apart))),
        ],
    )
    distinct = sum(not each.duplicate for each in unnamed)
    parts += _words(
        f"Of the {len(unnamed)} fresh starts on cards {distinct} differ in what matters here; 17 are of the "
        "campaign that most rules were made with, left aside for this. The predictions were committed before the "
        "figures, by the code of commit c1bf063. What they taught: a start that compiles its model, and the memory "
        "that a GB10's system takes. The second time was after that, by the code of commit c70c27c, figures and "
        "predictions in one commit; the third by the code of commit c72d125, likewise. Its logs were read whole, and "
        "where a log does not name its device that is taken from its sizes. They taught that a model that takes "
        "pictures is compiled without its embedding table, and that Gemma 4's rotary table has its whole head. Three "
        "starts of one machine and one of another (S) were known as open questions when the rules were written: they "
        "are predicted here for the first time, but are not fresh. GB10 stands apart: two starts with the same "
        "settings there were 1.4 to 3.4 GiB apart."
    )
    parts += [
        '<picture><source media="(prefers-color-scheme: dark)" srcset="images/accuracy-dark.svg">'
        '<img alt="Predicted over printed memory, and how far each start is off by version" '
        'src="images/accuracy-light.svg"></picture>',
        "",
        "## By part",
        "",
    ]
    parts += _table(
        ("part", "starts", "within 0.1 GiB", "median", "90% within", "largest", "mean"),
        [(NAMES[part], *_off([each.off[part] for each in old if part in each.off])) for part in NAMES],
    )
    parts += _words(
        "GiB; the starts the rules were made with. From 0.27 on the printed peak holds the estimate of the graphs, and "
        "so does the predicted one here. Between 0.18 and 0.20 the estimate is printed but not subtracted."
    )
    parts += ["## By version", ""]
    parts += _table(
        ("vLLM", "starts", "within 1%", "median off, GiB", "largest off, GiB", "in the range"),
        [(version, *_score(map(_row, group))) for version, group in _versions(old, fresh_cards)],
    )
    newest = [each for each in [*old, *fresh_cards] if parse(each.row["vllm"]) >= (0, 27, 0)]
    parts += _words(
        f"All kinds of starts, cards only, by today's rules. From 0.27 on only {len(newest)} starts are complete: "
        "what is said of 0.28 to 0.33 rests on their sources, not on logs."
    )
    widths, firsts = sorted(each.width for each in old), [*cards, *later, *third]
    parts += ["## Ranges", ""]
    parts += _words(
        f"Of {len(old)} starts {sum(each.inside for each in old)} printed a figure within the predicted range, give or "
        "take the rounding of what the log prints: of what was left and, as far as it is requested, of the device's "
        "total. One of them, on two hosts, is inside because its own figure is the only one known of such. Half of "
        f"the ranges are narrower than {100 * statistics.median(widths):.2f}% of the device, the widest is "
        f"{100 * widths[-1]:.1f}%. Fresh starts are the measure of it: of {len(firsts)} on cards, as first predicted, "
        f"{sum(row.inside for row in firsts)} were inside."
    )
    parts += ["## Starts that are off", ""]
    parts += _words("By more than 1% of the device, or outside the range; fresh ones as first predicted.")
    off = [row for row in [*map(_row, old), *said] if abs(row.share) > 0.01 or not row.inside]
    parts += _table(
        ("start", "model", "vLLM", "device", "predicted", "printed", "off", "why"),
        [
            (
                _short(row.name), row.model, row.version, row.device, f"{row.predicted:.2f}", f"{row.printed:.2f}",
                f"{row.predicted - row.printed:+.2f}", _why(row.name),
            )
            for row in off
        ],
    )  # fmt: skip
    every = starts.rows()
    parts += ["## What is not covered", ""]
    lacking = len(every) - sum(map(starts.complete, every))
    parts += [line for text in (f"{lacking} of the {len(every)} {LACKING}", *MISSING) for line in _item(text)]
    parts += [""]
    return "\n".join(parts)


def _model(row: dict[str, Any]) -> str:
    return str(row["model"]).rpartition("/")[2]


def _row(each: Scored) -> Row:
    row, printed = each.row, each.row["printed"]["available"]
    predicted = printed + each.off["available"]
    return Row(row["id"], _model(row), row["vllm"], row["machine"], predicted, printed, each.share, each.inside)


def _score(rows: Iterable[Row]) -> tuple[str, str, str, str, str]:
    found = list(rows)
    off = [abs(row.predicted - row.printed) for row in found]
    near, inside = sum(abs(row.share) <= 0.01 for row in found), sum(row.inside for row in found)
    return str(len(found)), str(near), f"{statistics.median(off):.2f}", f"{max(off):.2f}", str(inside)


def _off(values: Sequence[float]) -> tuple[str, ...]:
    size = sorted(map(abs, values))
    most = size[min(len(size) - 1, int(0.9 * len(size)))]
    near = sum(value <= 0.1 for value in size)
    figures = (statistics.median(size), most, size[-1])
    return str(len(size)), str(near), *(f"{value:.3f}" for value in figures), f"{statistics.mean(values):+.3f}"


def _versions(*groups: Sequence[Scored]) -> list[tuple[str, list[Scored]]]:
    found: dict[tuple[int, int], list[Scored]] = {}
    for each in (each for group in groups for each in group):
        found.setdefault(parse(each.row["vllm"])[:2], []).append(each)
    return [(f"{major}.{minor}", rows) for (major, minor), rows in sorted(found.items())]


def _short(name: str) -> str:
    return name.partition("--h100")[0].removeprefix("P:")[:24].strip("-") if name.startswith("P:") else name


def _why(name: str) -> str:
    return next(text for key, text in WHY.items() if key in name)


def _words(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]


def _item(text: str) -> list[str]:
    return textwrap.wrap(text, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def picture(theme: str) -> str:
    """Left: predicted over printed, GiB. Right: off, in percent of the device, by version."""
    ink = THEMES[theme]
    cards = [each for each in new() if each.row["machine"] != "dgx-spark"]
    points = [(each, "old") for each in known()] + [(each, "new") for each in cards]
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 400" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="900" height="400" fill="{ink["paper"]}"/>',
    ]
    most = 80.0
    left, top, side = 60.0, 40.0, 300.0

    def at(value: float) -> float:
        return side * (value + 5) / (most + 5)

    out.append(_text(left, 24, "predicted over printed, GiB", ink["ink"], "start"))
    for tick in range(0, 81, 20):
        x, y = left + at(tick), top + side - at(tick)
        out.append(_line(x, top, x, top + side, ink["line"]) + _line(left, y, left + side, y, ink["line"]))
        out.append(
            _text(x, top + side + 18, str(tick), ink["soft"]) + _text(left - 8, y + 4, str(tick), ink["soft"], "end")
        )
    out.append(_line(left, top + side, left + side, top, ink["soft"]))
    versions = [version for version, _ in _versions(known(), cards)]
    start, wide = 430.0, 440.0
    middle, scale = top + side / 2, side / 2 / 5
    out.append(_text(start, 24, "off, % of the device, by version", ink["ink"], "start"))
    band = f'<rect x="{start}" y="{middle - scale:.1f}" width="{wide}" height="{2 * scale:.1f}" fill="{ink["line"]}"'
    out.append(band + ' fill-opacity="0.5"/>')
    for tick in (-4, -2, 0, 2, 4):
        y = middle - tick * scale
        out.append(
            _line(start, y, start + wide, y, ink["line"])
            + _text(start - 8, y + 4, f"{tick:+d}" if tick else "0", ink["soft"], "end")
        )
    step = wide / len(versions)
    for index, version in enumerate(versions):
        out.append(_text(start + (index + 0.5) * step, top + side + 18, version, ink["soft"]))
    counts: dict[str, int] = {}
    for each, kind in points:
        row = _row(each)
        color = ink[kind]
        out.append(_dot(left + at(row.printed), top + side - at(row.predicted), color))
        version = ".".join(map(str, parse(row.version)[:2]))
        counts[version] = counts.get(version, 0) + 1
        beside = ((counts[version] * 7) % 11 - 5) / 11 * step * 0.7
        shown = max(-4.9, min(4.9, 100 * row.share))
        out.append(_dot(start + (versions.index(version) + 0.5) * step + beside, middle - shown * scale, color))
    out.append(
        _dot(left, 384, ink["old"]) + _text(left + 10, 388, "the rules were made with these", ink["ink"], "start")
    )
    out.append(
        _dot(left + 220, 384, ink["new"])
        + _text(left + 230, 388, "fresh starts, by today's rules", ink["ink"], "start")
    )
    out.append(_text(start + wide, 388, "shaded: within 1%", ink["soft"], "end"))
    return "\n".join([*out, "</svg>", ""])


def _line(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{color}"/>'


def _text(x: float, y: float, text: str, color: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{text}</text>'


def _dot(x: float, y: float, color: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}" fill-opacity="0.75"/>'


if __name__ == "__main__":
    main()
