"""The page of a run: a verdict for each budget, bars against the machine, growth, fragmentation, drift.  No script."""

from __future__ import annotations

from membudget import __version__
from membudget.history.record import Line
from membudget.report import charts, html
from membudget.report.charts import NAMES, size
from membudget.report.html import text
from membudget.report.story import DRAWN, Story, Told
from membudget.units import GB, GIB, both, short

#: With more budgets than this only those that failed are open.
OPEN = 3
_KINDS = {"passed": "yes", "failed": "no", "recorded": "none"}


def render(story: Story) -> str:
    """The whole file."""
    body = [
        '<main class="page report">',
        '<p class="mark">membudget</p>',
        f"<h1>{text(story.title)}</h1>",
        f'<p class="lede">{text(story.lede)}</p>',
        _count(story),
        _facts(story),
        _problems(story),
        _overview(story),
        *(_budget(told, place, len(story.told)) for place, told in enumerate(story.told)),
        f"<footer>membudget {text(__version__)}. Sizes in GiB (2³⁰ bytes) and GB (10⁹ bytes). "
        "This file asks no network and runs no script.</footer>",
        "</main>",
    ]
    return html.page(f"{story.title}: memory", "\n".join(body), styles=("base.css", "report.css"))


def _count(story: Story) -> str:
    chips = []
    for verdict, kind in _KINDS.items():
        found = [told for told in story.told if told.verdict == verdict]
        if found:
            chips.append(f'<span class="chip {kind}">{len(found):,} {text(found[0].word)}</span>')
    return f'<p class="counts">{" ".join(chips)}</p>'


def _facts(story: Story) -> str:
    if not story.facts:
        return ""
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in story.facts.items())
    return f'<dl class="card facts">{rows}</dl>'


def _problems(story: Story) -> str:
    if not story.problems:
        return ""
    items = "".join(f"<li>{text(problem)}</li>" for problem in story.problems)
    return f'<section class="card"><h2>What could not be read or asked</h2><ul class="notes">{items}</ul></section>'


def _overview(story: Story) -> str:
    rows = [
        f'<a class="row" href="#b{place}">'
        f'<span class="name">{text(told.id)}</span>{_chip(told)}'
        f'<span class="mini">{charts.bars(told, rows=False)}</span>'
        f'<span class="amount">{_amount(told)}</span></a>'
        for place, told in enumerate(story.told)
    ]
    keys = "".join(f'<span class="label"><span class="dot {name}"></span>{NAMES[name]}</span>' for name in DRAWN)
    return (
        '<section class="card"><div class="head"><h2>Every budget</h2>'
        f'<p class="small muted keys">{keys}</p></div><div class="rows">{"".join(rows)}</div></section>'
    )


def _amount(told: Told) -> str:
    if not told.predicted:
        return ""
    if told.capacity is None:
        return f"<b>{text(short(told.total))}</b>"
    left = (told.limit or told.capacity) - told.total if told.headroom is None else told.headroom
    word = "free" if left >= 0 else "over"
    of = f"{short(told.total)} of {short(told.limit or told.capacity)}"
    return f"<b>{text(short(abs(left)))} {word}</b><small>{text(of)}</small>"


def _chip(told: Told) -> str:
    return f'<span class="chip {_KINDS[told.verdict]}">{text(told.word)}</span>'


def _budget(told: Told, place: int, many: int) -> str:
    opened = " open" if told.verdict == "failed" or many <= OPEN else ""
    asked = told.settings
    words = [str(asked[key]) for key in ("model", "format") if key in asked]
    if "users" in asked and "ctx" in asked:
        words.append(f"{asked['users']:,} × {asked['ctx']:,} tokens")
    words += [str(asked[key]) for key in ("engine", "machine") if key in asked]
    parts = [
        f'<details class="card budget" id="b{place}"{opened}><summary><h2>{text(told.id)}</h2>{_chip(told)}</summary>',
        f'<p class="small muted">{text(" · ".join(words))}</p>',
        f'<p class="says">{text(told.says)}</p>',
    ]
    if told.broken:
        parts.append(f'<ul class="notes">{"".join(f"<li>{text(item)}</li>" for item in told.broken)}</ul>')
    parts += [_picture(told), _growth(told, place), _fragmentation(told), _drift(told), _lines(told)]
    if told.where:
        parts.append(f'<p class="small muted where">{text(told.where)}</p>')
    return "".join([*parts, "</details>"])


def _picture(told: Told) -> str:
    drawn = charts.bars(told)
    if not drawn:
        return ""
    tiles = []
    for bucket in DRAWN:
        line = told.lines.get(bucket, Line())
        value = line.predicted if isinstance(line.predicted, int) else line.measured
        if isinstance(value, int):
            binary, _, decimal = both(value).partition(" (")
            seen = f"{short(line.measured)} measured" if isinstance(line.measured, int) else "not measured"
            tiles.append(
                f'<div class="bucket {bucket}"><dt>{NAMES[bucket]}</dt><dd class="figure">{binary}</dd>'
                f'<dd class="small muted">{decimal.rstrip(")")}</dd>'
                + (f'<dd class="why">{text(seen)}</dd>' if told.measured else "")
                + "</div>"
            )
    memory = "the machine's memory is not known here" if told.capacity is None else f"the line: {both(told.capacity)}"
    if told.limit is not None and told.capacity is not None and told.limit < told.capacity:
        memory += f"; dashed: what the engine may claim, {both(told.limit)}"
    return f'<figure>{drawn}<figcaption>{text(memory)}</figcaption></figure><dl class="buckets">{"".join(tiles)}</dl>'


def _growth(told: Told, place: int) -> str:
    found = told.growth
    if found is None or found.slope is None:
        return ""
    said = f"{found.slope:,} B a token predicted ({'solid' if found.predicted else 'not drawn: the model is not here'})"
    if found.slope_end is not None and found.slope_end != found.slope:
        said += f", {found.slope_end:,} B once windows are full"
    if found.measured is not None:
        # where windows fill up the slope is that of the whole way, and must not be read as the first token's
        way = "" if found.slope_end == found.slope else " from the first length to the last"
        said += f"; {found.measured:,} B measured{way} (dashed)"
    if found.points:
        said += f"; dots: what {len(found.points)} prompts of growing length held"
    drawn = charts.growth(found, f"g{place}")
    said = f'<p class="small muted">{text(said)}</p>'
    return f"<section><h3>One user's cache, token by token</h3>{said}{drawn}</section>"


def _fragmentation(told: Told) -> str:
    found = {name: line for name, line in told.lines.items() if name.startswith("fragmentation")}
    if not found:
        return ""
    rows = []
    for name, line in found.items():
        label = name.partition("_")[2].capitalize() + " cache" if "_" in name else name
        if isinstance(line.measured, int):
            most = _limit(line.allowed)
            drawn = charts.gauge(label, line.measured, most) if most else ""
            allowed = f", allowed {line.allowed}" if line.allowed else ""
            rows.append(f'<p class="small">{text(label)}: {text(both(line.measured))}{text(allowed)}</p>{drawn}')
        else:
            rows.append(f'<p class="small muted">{text(label)}: not measured; only a caching allocator fragments</p>')
    if told.steps:
        rows.append(charts.steps(told.steps))
        if charts.reserves(told.steps):
            said = "reserved and not allocated, by step, with each kind of cache"
        else:
            said = (
                "what is allocated beside the weights, by step. This device has no caching allocator: "
                "what it reserves is unknown, because there is nothing that would reserve"
            )
        rows.append(f'<p class="small muted">{text(said)}</p>')
    return f"<section><h3>Fragmentation: reserved beside what is allocated</h3>{''.join(rows)}</section>"


def _limit(allowed: str) -> int | None:
    from membudget.budgets.tolerance import parse
    from membudget.units import UnitError, parse_bytes

    try:
        return parse_bytes(allowed.removeprefix("below ")) if parse(allowed).kind == "below" else None
    except UnitError:
        return None


def _drift(told: Told) -> str:
    if not told.courses:
        return ""
    rows = []
    for course in told.courses:
        first, last = course.values[0][1], course.values[-1][1]
        off = last - first
        share = f" ({off / abs(first):+.1%})" if off and first else ""
        sign = "+" if off > 0 else "-"
        moved = "as it was" if not off else f"{sign}{size(abs(off), course.unit)}{share}"
        side = "" if course.side == "measured" else "<small>predicted</small>"
        rows.append(
            f'<tr><th scope="row">{text(course.line)}{side}</th>'
            f'<td class="{"moved" if off else "muted"}">{text(moved)}</td><td class="word">{charts.spark(course)}</td>'
            f"<td>{text(size(first, course.unit))}</td><td>{text(size(last, course.unit))}</td></tr>"
        )
    runs = max(len(course.values) for course in told.courses)
    head = '<thead><tr><th scope="col">line</th><th scope="col">moved</th><th scope="col" class="word">runs</th>'
    head += '<th scope="col">first</th><th scope="col">now</th></tr></thead>'
    table = f'<table class="drift">{head}<tbody>{"".join(rows)}</tbody></table>'
    label = f"Drift of {told.id}"
    return (
        f"<section><h3>Over {runs:,} runs</h3>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}">{table}</div></section>'
    )


def _lines(told: Told) -> str:
    if not told.lines:
        return ""
    measured = any(line.measured is not None for line in told.lines.values())
    heads = ["line", "predicted", *(["measured", "off by", "allowed"] if measured else [])]
    rows = "".join(_row(name, line, measured) for name, line in told.lines.items())
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        '<details class="more"><summary>Every line, to the byte</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(f"Lines of {told.id}")}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _row(name: str, line: Line, measured: bool) -> str:
    dot = f'<span class="dot {name}"></span>' if name in NAMES else ""
    cells = [f'<th scope="row"><span class="label">{dot}{text(name)}</span></th>', _cell(line.predicted, line.unit)]
    if measured:
        off = ""
        if isinstance(line.predicted, int) and isinstance(line.measured, int):
            gap = line.measured - line.predicted
            off = f"{gap:+,}" if gap else "0"
        cells += [_cell(line.measured, line.unit), f"<td>{text(off)}</td>", f"<td>{text(line.allowed)}</td>"]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(value: int | str | None, unit: str) -> str:
    if not isinstance(value, int) or unit != "bytes":
        return f"<td>{text(size(value, unit))}</td>"
    if value < 1024:
        return f"<td>{value:,} B</td>"
    decimal = f" · {value / GB:,.2f} GB" if value >= GIB else ""
    return f"<td>{text(short(value) + decimal)}<small>{value:,} B</small></td>"
