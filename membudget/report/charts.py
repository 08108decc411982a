"""Pictures as SVG text: bars, growth lines, sparklines.  Widths are in per cent, so they fit any screen.

Colours come from the page's style sheet by class (one a bucket); nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from membudget.report.html import safe, text
from membudget.report.story import DRAWN, Course, Growth, Steps, Told
from membudget.units import short

NAMES = {"weights": "weights", "kv_cache": "KV cache", "activations": "activations", "overhead": "overhead"}
_ROW, _GAP = 22, 8


def bars(told: Told, rows: bool = True) -> str:
    """The four buckets against the machine's memory; with `rows` predicted above measured, and their scale.

    A bucket that was not measured keeps its predicted width, as an outline.
    """
    predicted, measured = told.predicted, told.measured
    if not predicted and not measured:
        return ""
    shown = [("predicted", predicted)] if predicted else []
    if measured and (rows or not shown):
        shown.append(("measured", measured))
    most = max(sum(_filled(sums, predicted).values()) for _, sums in shown)
    scale = max(most, told.capacity or 0) or 1
    capacity = told.capacity or scale
    lead = 20 if rows else 0
    height = len(shown) * (lead + _ROW) + (len(shown) - 1) * _GAP
    said = "; ".join(f"{name}: {_spoken(sums)}" for name, sums in shown)
    memory = f"; memory {short(told.capacity)}" if told.capacity else ""
    parts = [f'<svg class="bars" height="{height}" role="img" aria-label="{text(said + memory)}">']
    for place, (name, sums) in enumerate(shown):
        top = place * (lead + _ROW + _GAP) + lead
        if rows:
            parts.append(_caption(name, sums, predicted, top))
        parts.append(f'<rect class="track" x="0" y="{top}" width="{_share(capacity, scale)}" height="{_ROW}" rx="4"/>')
        start = 0
        for bucket in DRAWN:
            size = _filled(sums, predicted).get(bucket, 0)
            if size:
                kind = bucket if bucket in sums else f"{bucket} guess"
                label = f"{NAMES[bucket]} {short(size)}" + ("" if bucket in sums else ", not measured")
                parts.append(
                    f'<rect class="part {kind}" x="{_share(start, scale)}" y="{top}" width="{_share(size, scale)}" '
                    f'height="{_ROW}"><title>{text(label)}</title></rect>'
                )
            start += size
        if told.capacity:
            parts += _ends(told, scale, top)
    return safe("".join([*parts, "</svg>"]))


def growth(found: Growth, identity: str) -> str:
    """One user's cache over tokens: predicted as a line, measured as points, and dashes of the measured slope.

    "" where neither is there: a record whose model is not here, and that kept no points.
    """
    if not found.predicted and not found.points:
        return ""
    ctx, top = found.predicted[-1] if found.predicted else (0, 0)
    start, end = _slope_ends(found, ctx)
    ctx = max(ctx, *(tokens for tokens, _ in found.points)) if found.points else ctx
    high = max(top, end[1], *(held for _, held in found.points)) if found.points else max(top, end[1])
    said = "KV cache of one user"
    if found.predicted:
        said += f": {short(top)} at {found.predicted[-1][0]:,} tokens predicted"
    if found.measured is not None:
        said += f"; measured {found.measured:,} B a token"
    said += "".join(f"; {short(held)} at {tokens:,} tokens measured" for tokens, held in found.points)
    frame = Frame(ctx, high or 1)
    parts = [f'<svg class="growth" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{text(said)}">']
    parts += frame.grid()
    if found.predicted:
        path = "L".join(frame.at(tokens, size) for tokens, size in found.predicted)
        parts.append(f'<path class="line kv_cache" id="{text(identity)}" d="M{path}"/>')
    if found.measured is not None:
        parts.append(f'<path class="line seen" d="M{frame.at(*start)}L{frame.at(*end)}"/>')
    for tokens, held in found.points:
        parts.append(frame.dot(tokens, held, f"{held:,} B at {tokens:,} tokens, measured"))
    return safe("".join([*parts, "</svg>"]))


def _slope_ends(found: Growth, ctx: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the measured slope is drawn: through the first point, whatever its intercept; from zero without points."""
    slope = found.measured or 0
    if not found.points:
        return (0, 0), (ctx, slope * ctx)
    (first, held), (last, _) = found.points[0], found.points[-1]
    return (first, held), (last, held + slope * (last - first))


def steps(found: Sequence[Steps]) -> str:
    """What lies reserved and unused by step, a line for each kind; what is allocated where nobody knows the former."""
    known = reserves(found)
    lines = {item.kind: item.sizes(known) for item in found}
    frame = Frame(
        max(points[-1][0] for points in lines.values()),
        max(size for points in lines.values() for _, size in points) or 1,
        right=92,
    )
    what = "reserved, not allocated" if known else "allocated"
    ends = [f"{kind}: {short(points[-1][1])} {what} after {points[-1][0]:,} steps" for kind, points in lines.items()]
    label = text("; ".join(ends))
    parts = [f'<svg class="growth steps" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{label}">']
    parts += frame.grid()
    for kind, points in lines.items():
        path = "L".join(frame.at(step, size) for step, size in points)
        parts.append(f'<path class="line {text(kind)}" d="M{path}"/>')
        parts += [frame.dot(step, size, f"{kind}, step {step:,}: {size:,} B {what}") for step, size in points]
    # names stand beside the ends of their lines, the highest first, and never on each other
    above = 0.0
    for kind, points in sorted(lines.items(), key=lambda item: -item[1][-1][1]):
        x, y = map(float, frame.at(*points[-1]).split())
        above = max(y + 4, above + 14)
        parts.append(f'<text x="{x + 8:.1f}" y="{above:.1f}">{text(kind)}</text>')
    return safe("".join([*parts, "</svg>"]))


def reserves(found: Sequence[Steps]) -> bool:
    """Whether the device said what it reserves at every step."""
    return all(spare is not None for item in found for _, _, spare in item.points)


class Frame:
    """Axes from 0 to `wide` and 0 to `high` bytes in a picture of fixed size."""

    width, height, left, bottom = 440, 230, 80, 200

    def __init__(self, wide: int, high: int, right: int = 12) -> None:
        self.wide, self.high, self.right = max(wide, 1), high, self.width - right

    def at(self, place: int, size: int) -> str:
        """A point as SVG writes it."""
        x = self.left + (self.right - self.left) * place / self.wide
        return f"{x:.1f} {self.bottom - (self.bottom - 16) * size / self.high:.1f}"

    def dot(self, place: int, size: int, label: str) -> str:
        """A point that was measured, with what it says."""
        x, y = self.at(place, size).split()
        return f'<circle cx="{x}" cy="{y}" r="3.5"><title>{text(label)}</title></circle>'

    def grid(self) -> list[str]:
        """Three lines with their sizes, three places with their numbers."""
        parts = []
        for share in (0, 1, 2):
            y = self.bottom - (self.bottom - 16) * share / 2
            label = text(short(self.high * share // 2))
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{y:.0f}" y2="{y:.0f}"/>')
            parts.append(f'<text x="{self.left - 8}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
            x = self.left + (self.right - self.left) * share / 2
            anchor = ("start", "middle", "end")[share]
            parts.append(
                f'<text x="{x:.0f}" y="{self.height - 8}" text-anchor="{anchor}">{self.wide * share // 2:,}</text>'
            )
        return parts


def spark(course: Course) -> str:
    """A line over runs; every run is a dot with its label."""
    values = [value for _, value in course.values]
    low, high = min(values), max(values)
    span, width, height = high - low, 180, 36
    step = (width - 12) / max(len(values) - 1, 1)

    def at(place: int, value: int) -> tuple[str, str]:
        y = height / 2 if not span else height - 6 - (height - 12) * (value - low) / span
        return f"{6 + place * step:.1f}", f"{y:.1f}"

    points = [at(place, value) for place, value in enumerate(values)]
    first, last = size(values[0], course.unit), size(values[-1], course.unit)
    said = f"{course.line}: {len(values)} runs, first {first}, now {last}"
    parts = [f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{text(said)}">']
    parts.append(f'<path class="line" d="M{"L".join(f"{x} {y}" for x, y in points)}"/>')
    for (label, value), (x, y) in zip(course.values, points, strict=True):
        named = text(f"{label}: {size(value, course.unit)}")
        parts.append(f'<circle cx="{x}" cy="{y}" r="3"><title>{named}</title></circle>')
    return safe("".join([*parts, "</svg>"]))


def gauge(name: str, value: int, most: int) -> str:
    """A value below its limit: the part that is used, and the limit as a line."""
    scale = max(value, most) or 1
    said = f"{name}: {short(value)}, allowed below {short(most)}"
    return safe(
        f'<svg class="gauge" height="18" role="img" aria-label="{text(said)}">'
        f'<rect class="track" x="0" y="3" width="{_share(most, scale)}" height="12" rx="3"/>'
        f'<rect class="part overhead" x="0" y="3" width="{_share(value, scale)}" height="12"/>'
        f'<rect class="end" x="{_share(most, scale)}" y="0" width="2" height="18" transform="translate(-2)"/></svg>'
    )


def size(value: int | str | None, unit: str) -> str:
    """A value in its unit; a dash for none."""
    if value is None:
        return "–"
    if unit == "x100" and isinstance(value, int):
        return f"{value / 100:,.2f}x"
    return str(value) if isinstance(value, str) else short(value) if unit == "bytes" else f"{value:,}"


def _filled(sums: dict[str, int], predicted: dict[str, int]) -> dict[str, int]:
    return {**predicted, **sums}


def _caption(name: str, sums: dict[str, int], predicted: dict[str, int], top: int) -> str:
    total = sum(sums.values())
    missing = [NAMES[bucket] for bucket in DRAWN if bucket in predicted and bucket not in sums]
    more = f", without {' and '.join(missing)}" if missing else ""
    return f'<text x="0" y="{top - 6}"><tspan class="strong">{name}</tspan> {text(short(total) + more)}</text>'


def _ends(told: Told, scale: int, top: int) -> Sequence[str]:
    ends = []
    line, total = told.limit or told.capacity or 0, _total(told)
    if total > line:
        x, width = _share(line, scale), _share(total - line, scale)
        ends.append(f'<rect class="beyond" x="{x}" y="{top}" width="{width}" height="{_ROW}"/>')
    if told.limit is not None and told.capacity is not None and told.limit < told.capacity:
        x = _share(told.limit, scale)
        ends.append(f'<line class="claim" x1="{x}" x2="{x}" y1="{top - 4}" y2="{top + _ROW + 4}"/>')
    ends.append(
        f'<rect class="end" x="{_share(told.capacity or 0, scale)}" y="{top - 4}" width="2" height="{_ROW + 8}" '
        f'transform="translate(-2)"/>'
    )
    return ends


def _total(told: Told) -> int:
    return max(told.total, sum(_filled(told.measured, told.predicted).values()))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f}%"


def _spoken(sums: dict[str, int]) -> str:
    return ", ".join(f"{NAMES[bucket]} {short(sums[bucket])}" for bucket in DRAWN if bucket in sums)
