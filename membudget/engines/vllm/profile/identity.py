"""Where the pool's bytes come from: utilization x total - weights - activations - non-torch - CUDA graphs.

Forward it predicts the bytes for the pool and vLLM's free-memory check; backward it
closes over a log's own figures, or names the line that does not fit.
vLLM: v1/worker/gpu_worker.py determine_available_memory, v1/worker/utils.py request_memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from membudget.engines.vllm.versions import DEFAULT, Rules, rules
from membudget.errors import MembudgetError
from membudget.units import GIB, MIB, gib

#: What a sum of figures printed with two decimals may be off, the issue's 0.02 GiB.
TOLERANCE = GIB // 50
#: vLLM keeps this much back in the --kv-cache-memory it suggests (gpu_worker.py).
SUGGESTION_MARGIN = 150 * MIB


#: A device of about this size shares its memory with the system (GB10: 119.6 to 121.7 GiB, Jetson Thor 122.8); no card
#: with memory of its own has as much and not more.
_SHARED = (112 * GIB, 126 * GIB)
#: What must stay free there: a host that runs out hangs (docs/hardware.md).
_KEPT = 12 * GIB


def kept_free(total: int) -> int:
    """Bytes of a device of so many that no share may claim, by its size: where the system has its memory too."""
    return _KEPT if _SHARED[0] <= total <= _SHARED[1] else 0


class IdentityError(MembudgetError):
    """Figures that cannot be: a utilization above 1, more free than there is."""


class Part(NamedTuple):
    """One line of the identity: its name, its bytes (negative: subtracted), and where it comes from."""

    name: str
    bytes: int
    why: str


class Figures(NamedTuple):
    """What is known, in bytes; None where it is not.

    total: of the device, as the driver reports it.  utilization: gpu_memory_utilization.
    requested: as printed; without it total x utilization.  free: at start-up.
    weights, activation, non_torch: as printed by this version.  consumed: weights + non-torch in one
    figure, as 0.27 and later print it.  graph_estimate: of the CUDA graphs, before they exist.
    activation_holds_graphs: the printed peak activation includes the estimate (closing line since 0.27).
    available_kv: what was left for the pool, as printed.  mm_ipc: kept for multimodal inputs (0.26+).
    """

    total: int | None = None
    utilization: float | None = None
    requested: int | None = None
    free: int | None = None
    weights: int | None = None
    activation: int | None = None
    non_torch: int | None = None
    consumed: int | None = None
    graph_estimate: int | None = None
    activation_holds_graphs: bool = False
    available_kv: int | None = None
    mm_ipc: int | None = None


class Identity(NamedTuple):
    """The lines, their sum, and whether that is what was printed.

    predicted: bytes for the pool by the lines; None when a line is missing (`missing` names it).
    printed: as the log has it.  off: printed - predicted.  closes: within `TOLERANCE`.
    suspect: the line that does not fit, and `text` why.
    """

    parts: tuple[Part, ...]
    predicted: int | None
    printed: int | None
    off: int | None
    closes: bool | None
    missing: tuple[str, ...]
    suspect: str | None
    text: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        out = self._asdict()
        out["parts"] = [part._asdict() for part in self.parts]
        out["missing"] = list(self.missing)
        return out

    def lines(self) -> list[str]:
        """The sum as a table, one part a line, then what follows."""
        width = max((len(part.name) for part in self.parts), default=0)
        out = [f"{part.name:<{width}} {gib(part.bytes):>14}   {part.why}" for part in self.parts]
        if self.predicted is not None:
            out.append(f"{'= for the pool':<{width}} {gib(self.predicted):>14}")
        if self.printed is not None:
            out.append(f"{'printed':<{width}} {gib(self.printed):>14}")
        out.append(self.text)
        return out


def requested_bytes(total: int, utilization: float, version: str = DEFAULT) -> int:
    """What vLLM asks of the device: total x utilization, rounded up since 0.14.0."""
    if not 0 < utilization <= 1:
        raise IdentityError(f"gpu_memory_utilization {utilization}: more than 0 and at most 1")
    product = total * utilization
    whole = int(product)
    return whole + 1 if rules(version).ceil and product > whole else whole


def identity(figures: Figures, version: str = DEFAULT) -> Identity:
    """Sum the lines; compare with `available_kv` when it is there."""
    r = rules(version)
    parts: list[Part] = []
    missing: list[str] = []
    requested = _requested(figures, version, parts, missing)
    _subtract(figures, r, parts, missing)
    if missing:
        text = f"not decided: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not known"
        return Identity(tuple(parts), None, figures.available_kv, None, None, tuple(missing), None, text)
    predicted = sum(part.bytes for part in parts)
    printed = figures.available_kv
    if printed is None:
        text = "nothing left for the pool: vLLM refuses to start" if predicted <= 0 else "for the pool"
        return Identity(tuple(parts), predicted, None, None, None, (), None, text)
    off = printed - predicted
    if abs(off) <= TOLERANCE:
        text = f"closes: off by {gib(off)}, allowed {gib(TOLERANCE, 2)}"
        return Identity(tuple(parts), predicted, printed, off, True, (), None, text)
    suspect, text = _suspect(figures, r, requested, predicted, printed)
    return Identity(tuple(parts), predicted, printed, off, False, (), suspect, text)


def _requested(figures: Figures, version: str, parts: list[Part], missing: list[str]) -> int:
    if figures.requested is not None:
        parts.append(Part("requested", figures.requested, "as printed"))
        return figures.requested
    if figures.total is None or figures.utilization is None:
        missing.extend(
            name for name, value in (("total", figures.total), ("utilization", figures.utilization)) if value is None
        )
        return 0
    size = requested_bytes(figures.total, figures.utilization, version)
    parts.append(Part("requested", size, f"{figures.utilization:g} x {gib(figures.total)} (v1/worker/utils.py)"))
    return size


def _subtract(figures: Figures, r: Rules, parts: list[Part], missing: list[str]) -> None:
    if figures.consumed is not None:
        parts.append(Part("weights and non-torch", -figures.consumed, "free before the model - free after profiling"))
    else:
        for name in ("weights", "non_torch"):
            value = getattr(figures, name)
            if value is None:
                missing.append(name)
            else:
                parts.append(Part(name, -value, "as printed"))
    if figures.activation is None:
        missing.append("activation")
    else:
        parts.append(Part("activation", -figures.activation, "peak of the profile run"))
    if r.graph_estimate and not figures.activation_holds_graphs and figures.graph_estimate:
        parts.append(
            Part("cuda_graphs", -figures.graph_estimate, f"estimate, subtracted by default in {r.name} (gpu_worker.py)")
        )
    if figures.mm_ipc:
        parts.append(Part("mm_ipc", -figures.mm_ipc, "kept for multimodal inputs (gpu_worker.py)"))


def _suspect(figures: Figures, r: Rules, requested: int, predicted: int, printed: int) -> tuple[str, str]:
    """The line that explains the difference: the first that closes the sum when it is corrected."""
    off = printed - predicted
    says = f"the lines leave {gib(predicted)}, printed is {gib(printed)}: off by {gib(off)}"
    if figures.total and figures.utilization is not None and figures.requested is not None:
        product = requested_bytes(figures.total, figures.utilization, r.name)
        if abs(product - requested) > TOLERANCE and abs(off + requested - product) <= TOLERANCE:
            return "requested", f"{says}; requested is not {figures.utilization:g} x {gib(figures.total)}"
    if figures.total and figures.utilization is not None:
        implied = (requested + off) / figures.total
        hundredth = round(implied * 100) / 100
        exact = abs(implied - hundredth) * figures.total <= TOLERANCE
        if exact and 0 < hundredth <= 1 and hundredth != round(figures.utilization, 4):
            impossible = "impossible at" if predicted <= 0 < printed else "not from"
            return (
                "utilization",
                f"{says}; this is {impossible} utilization {figures.utilization:g}, and exact at {hundredth:g}",
            )
    graph = figures.graph_estimate
    if graph and not figures.activation_holds_graphs:
        counted = r.graph_estimate
        if abs(off - (graph if counted else -graph)) <= TOLERANCE:
            word = "was not subtracted" if counted else "was subtracted"
            return "cuda_graphs", f"{says}; the CUDA-graph estimate of {gib(graph)} {word}"
    if predicted <= 0 < printed:
        return "available_kv", f"{says}; nothing is left by these lines, so the printed figure is of another run"
    return "available_kv", f"{says}; no single line explains it"


def free_source(version: str, integrated: bool, capability: tuple[int, int] | None = None) -> str:
    """Where this version takes "free memory" from: ``driver`` (cudaMemGetInfo) or ``available`` (MemAvailable).

    On unified memory the driver does not count page cache as free, so a host that has
    just read a checkpoint looks full to 0.10; from 0.11.2 on some devices, from 0.20.0 on
    every integrated one, vLLM reads MemAvailable, which counts page cache as free.
    """
    v = rules(version).version
    if v >= (0, 20, 0):
        return "available" if integrated else "driver"
    if v >= (0, 11, 2) and capability in ((8, 7), (11, 0), (12, 1)):
        return "available"
    return "driver"


def startup_check(
    total: int, free: int, utilization: float, version: str = DEFAULT, device: str = "cuda:0"
) -> str | None:
    """vLLM's refusal when less is free at start-up than it wants, in its words; None when it goes on.

    0.8.5 does not check.  Raises `IdentityError` when more is free than there is: a bad reading.
    """
    r = rules(version)
    if free > total:
        raise IdentityError(f"{gib(free)} free of {gib(total)}: more is free than there is, so one of them is wrong")
    if r.version < (0, 9, 2):
        return None
    wanted = requested_bytes(total, utilization, version)
    if free >= wanted:
        return None
    where = f"device {device}" if r.version >= (0, 14, 0) else "device"
    return (
        f"Free memory on {where} ({_two(free)}/{_two(total)} GiB) on startup is less than desired GPU memory "
        f"utilization ({utilization}, {_two(wanted)} GiB). Decrease GPU memory utilization or reduce GPU memory "
        "used by other processes."
    )


def _two(size: int) -> str:
    return str(round(size / GIB, 2))


def sampler_warmup(max_num_seqs: int, vocab: int) -> int:
    """Bytes that warming up the sampler takes after the pool is allocated: fp32 logits of every sequence.

    A pool that fits can still die here: vLLM warms up min(max_num_seqs, ...) dummy requests (gpu_model_runner.py).
    """
    return max_num_seqs * vocab * 4
