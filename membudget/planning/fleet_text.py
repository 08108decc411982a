"""A fleet in words: the bound in decimal GB as sold, the layouts in GiB as the driver reports, never in one sum."""

from __future__ import annotations

from typing import Any

from membudget.planning.fleet import BOUND, Fleet, Kind
from membudget.planning.node_layouts import MOST_DEVICES, Layout, nearest, smallest
from membudget.planning.words import users_text
from membudget.units import GB, GIB, both, short

NOT_LAID_OUT = (
    "a number of parameters cannot be laid out: the verdict is the bound's alone; "
    "give a MODEL or its config.json to try the node's layouts"
)


def refusal(fleet: Fleet) -> str | None:
    """Why the node is refused, with both figures; None when a layout of it holds the plan."""
    bound = _bound_refusal(fleet)
    if fleet.layouts is None:
        return bound
    best = smallest(fleet.layouts)
    if bound is not None:
        if best is None:
            return f"{bound}; no layout of {_tried(fleet)} {_fits(fleet.layouts)} either"
        return (
            f"{bound}; yet a layout of it fits by what the driver reports, as in `membudget plan`: {best.title} "
            f"({_on(best.devices)}): the bound has fewer bytes, as sold, and a larger reserve"
        )
    if best is not None:
        return None
    near = nearest(fleet.layouts)
    over = f"; the nearest is {near.title}, {short(-(near.headroom or 0))} over" if near else ""
    none = f"refused: no layout of {_tried(fleet)} {_fits(fleet.layouts)}"
    return f"{none}, though the bytes of one node would do: {_within(fleet)}{over}"


def verdict(fleet: Fleet) -> str:
    """One sentence on the node."""
    refused = refusal(fleet)
    if refused is not None:
        return refused
    text = f"within one node: {_within(fleet)}"
    best = smallest(fleet.layouts or [])
    return text if best is None else f"{text}; the fewest with a layout that fits: {_on(best.devices)}, {best.title}"


def lines(fleet: Fleet) -> list[str]:
    """The plan as text; lines with two spaces in a row are columns, the others sentences."""
    shown = [f"{users_text(fleet.users)} x {fleet.ctx:,} tokens"]
    for part in fleet.parts:
        two = f" = {gib(part.bytes)}" if part.name == "kv_cache" else ""
        shown.append(f"{part.name:<14} {gb(part.bytes):>16}{two}   {part.why}")
    shown.append(f"{'total':<14} {gb(fleet.total):>16}")
    if fleet.mha_bf16 is not None and fleet.kv_cache and fleet.mha_bf16 != fleet.kv_cache:
        ratio = f"{fleet.mha_bf16 / fleet.kv_cache:.2f}".rstrip("0").rstrip(".")
        shown.append(
            f"one KV head for every attention head in bf16 would take {ratio}x the cache: {gib(fleet.mha_bf16)}"
        )
    for count in fleet.counts:
        each = f"{gb(count.marketed)} each"
        if count.reserve:
            left = gb(count.marketed - count.reserve)
            each += f" as sold, less {gb(count.reserve)} that is left to the system: {left}"
        shown.append(f"at least {count.devices:,} x {count.machine} ({each})")
    shown.append(BOUND)
    shown += [_kind(kind) for kind in fleet.kinds]
    shown.append(verdict(fleet))
    if fleet.layouts is not None:
        shown += _layouts(fleet, fleet.layouts)
    return [*shown, *_split(fleet), *([NOT_LAID_OUT] if fleet.layouts is None else [])]


def as_json(fleet: Fleet) -> dict[str, Any]:
    """The plan as documented JSON: bytes as integers, stable keys."""
    return {
        "ctx": fleet.ctx,
        "users": fleet.users,
        **fleet.sums,
        "reserve": fleet.reserve,
        "total": fleet.total,
        "kv_cache_mha_bf16": fleet.mha_bf16,
        "lower_bound": True,
        "lower_bound_text": BOUND,
        "counts": [count._asdict() for count in fleet.counts],
        "node": {"machine": fleet.node.name, "devices": fleet.node_devices, "bytes": fleet.node_bytes},
        "fits": fleet.fits,
        "within_bound": fleet.within_bound,
        "max_users": fleet.max_users,
        "refusal": refusal(fleet),
        "verdict": verdict(fleet),
        "layouts": None if fleet.layouts is None else [_plain(layout) for layout in fleet.layouts],
        "with_a_layout": [
            kind._asdict() | {"layout": None if kind.layout is None else _plain(kind.layout)} for kind in fleet.kinds
        ],
        "tensor_parallel": [way._asdict() for way in fleet.tensor_parallel],
        "parts": [part._asdict() for part in fleet.parts],
    }


def _plain(layout: Layout) -> dict[str, Any]:
    return {"devices": layout.devices, **layout._asdict()}


def _bound_refusal(fleet: Fleet) -> str | None:
    if fleet.within_bound:
        return None
    held, has = fleet.weights + fleet.kv_cache, fleet.node_bytes
    node = f"{fleet.node_devices} x {fleet.node.name} have {gb(has)}"
    if fleet.node.os_reserve:
        node += " beside what is left to the system"
    many = f"{fleet.max_users:,} users fit" if fleet.max_users != 1 else "one user fits"
    advice = f"by these sums at most {many}" if fleet.max_users else "by these sums not even one user fits"
    if held > has:
        return (
            f"refused: exceeds the node: {gb(fleet.total)} are needed and {node}; "
            f"weights and KV cache alone are {gb(held)}; {advice}"
        )
    return (
        f"refused: an unbudgeted prefill peak: weights and KV cache take {gb(held)}, {node}, "
        f"and the {gb(has - held)} left are less than the reserve of {gb(fleet.reserve)} "
        f"for prefill, CUDA and NCCL ({gb(fleet.total)} in all); {advice}"
    )


def _within(fleet: Fleet) -> str:
    node = f"{fleet.node_devices} x {fleet.node.name}"
    beside = " beside what is left to the system" if fleet.node.os_reserve else ""
    return f"{gb(fleet.total)} of the {gb(fleet.node_bytes)} of {node}{beside}"


def _split(fleet: Fleet) -> list[str]:
    """What tensor-parallel sizes make of a device as sold: all of them, of a model those that were asked for."""
    found = []
    for way in fleet.tensor_parallel:
        if fleet.layouts is not None and way.size not in fleet.asked:
            continue
        if way.weights is None or way.kv_cache is None:
            found.append(f"tensor parallel {way.size}: no: {way.why}")
            continue
        given = fleet.node.marketed - fleet.node.os_reserve
        left = given - way.weights - way.kv_cache
        space = f"leave {gb(left)} of" if left >= 0 else f"are {gb(-left)} more than"
        found.append(
            f"tensor parallel {way.size}: {way.why}; a device's {gb(way.weights)} weights and "
            f"{gb(way.kv_cache)} KV cache {space} {gb(given)}, before workspace"
        )
    return found


def _kind(kind: Kind) -> str:
    """``6 x h200-141gb by bytes as sold; 8 with a layout: tensor 1 x pipeline 8``."""
    text = f"{kind.by_bytes:,} x {kind.machine} by bytes as sold; "
    if kind.layout is None:
        return f"{text}no layout of up to {kind.tried:,} {'is known to fit' if kind.unknown else 'fits'}"
    text = f"{text}{kind.layout.devices:,} with a layout: {kind.layout.title}"
    if kind.layout.devices >= kind.by_bytes:
        return text
    return f"{text}; fewer, for the driver reports more bytes, or a plan's workspace is less than the assumed reserve"


def _fits(layouts: list[Layout]) -> str:
    return "is known to fit" if any(layout.unknown for layout in layouts) else "fits"


def _layouts(fleet: Fleet, layouts: list[Layout]) -> list[str]:
    """The layouts on all the node's devices, on as many as the bound says, and on the fewest that fit."""
    machine, best = fleet.node, smallest(layouts)
    reserve = f", less {short(machine.os_reserve)} that is left to the system" if machine.os_reserve else ""
    head = (
        f"layouts of {_tried(fleet)}, as `membudget plan` has them: {both(machine.memory)} a device as its driver "
        f"reports{reserve}; the bound above has {gb(machine.marketed)} as sold"
    )
    counts = {min(fleet.node_devices, MOST_DEVICES), fleet.node_count, *([best.devices] if best else [])}
    planned = [layout for layout in layouts if layout.headroom is not None]
    rows = [layout for layout in planned if layout.devices in counts] or planned
    rows.sort(key=lambda one: (one.devices, one.pipeline_parallel))
    wide = max((len(layout.title) for layout in rows), default=0)
    found = [head]
    for row in rows:
        left = row.headroom or 0
        room = f"fits, {short(left)} free" if row.fits else f"no, {short(-left)} over"
        most = (
            f"{users_text(row.max_users)} fit{'s' if row.max_users == 1 else ''}" if row.max_users else "no user fits"
        )
        found.append(f"  {row.title:<{wide}}  {_on(row.devices):>11}  {room:<23}  {most}")
    found += _refusals([layout for layout in layouts if layout.refused is not None], counts)
    others = len(planned) - len(rows)
    if others:
        found.append(f"{others} more on other numbers of devices: --json has them all")
    return found


def _refusals(refused: list[Layout], counts: set[int]) -> list[str]:
    """Sizes that are refused, those of one reason together; only tensor sizes that divide a count that is shown."""
    groups: dict[str, tuple[str, list[str], list[str]]] = {}
    for layout in refused:
        tp, staged = layout.tensor_parallel, layout.pipeline_parallel > 1
        why = f"{'left out' if layout.unknown else 'refused'}: {layout.refused}"
        if not staged and not any(count % tp == 0 for count in counts):
            continue
        # one reason but for the size in it
        key = " ".join("N" if word.strip("().,:") == str(tp) else word for word in why.split())
        _, sizes, stages = groups.setdefault(key, (why, [], []))
        (stages if staged else sizes).append(str(tp))
    shown = []
    for why, sizes, stages in groups.values():
        parts = [f"tensor {', '.join(sizes)}"] if sizes else []
        parts += [f"pipeline 2 or more of tensor {', '.join(stages)}"] if stages else []
        shown.append(f"{' and '.join(parts)}: {why}")
    return shown


def _tried(fleet: Fleet) -> str:
    """``8 x h200-141gb``; of a larger node how many of them."""
    devices = fleet.node_devices
    text = f"{devices:,} x {fleet.node.name}"
    return text if devices <= MOST_DEVICES else f"up to {MOST_DEVICES:,} of the {text}"


def _on(devices: int) -> str:
    return f"{devices:,} device{'s' if devices != 1 else ''}"


def gb(size: int) -> str:
    """Bytes as decimal GB, rounded to hundredths: ``"1,233.21 GB"``."""
    return _hundredths(size, GB, "GB")


def gib(size: int) -> str:
    """Bytes as binary GiB, rounded to hundredths: ``"8,000.00 GiB"``."""
    return _hundredths(size, GIB, "GiB")


def _hundredths(size: int, unit: int, name: str) -> str:
    whole, rest = divmod((abs(size) * 200 + unit) // (2 * unit), 100)
    return f"{'-' if size < 0 else ''}{whole:,}.{rest:02} {name}"


__all__ = ["BOUND", "NOT_LAID_OUT", "gb", "gib", "lines", "refusal", "verdict"]
