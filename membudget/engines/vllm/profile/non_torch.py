"""Memory that a start takes outside torch: CUDA's context and kernels, NCCL, what FlashInfer keeps; 0.27 and later: all
that is consumed beyond the weights.  Every figure is the median of public starts, with their range and number.
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.vllm.profile.estimate import Estimate
from membudget.machines import Machine
from membudget.units import GIB

Version = tuple[int, int, int]


class Seen(NamedTuple):
    """Public starts of one kind: since this version, GiB (median, lowest, highest), how many rows, where they are."""

    since: Version
    median: float
    low: float
    high: float
    rows: int
    note: str


_ROWS = "fixtures/logs/available_kv/rows.jsonl"
#: Tensor parallel size 1, on data-center cards (Hopper, Blackwell 10.x), newest first.
_CENTER_1 = (
    Seen((0, 27, 0), 0.30, 0.15, 0.56, 5, "consumed beyond the weights, 0.27.1 to 0.31"),
    Seen((0, 18, 0), 0.25, 0.23, 0.46, 46, "H100 of 0.18 and 0.19, B200, B300 of 0.26"),
    Seen((0, 0, 0), 0.13, 0.07, 0.14, 8, "H100 of 0.10.2 to 0.17"),
)
#: On other cards.
_OTHER_1 = (
    Seen((0, 27, 0), 0.30, 0.15, 0.56, 5, "consumed beyond the weights, 0.27.1 to 0.31"),
    Seen((0, 18, 0), 0.07, 0.02, 0.26, 5, "cards of 16 to 96 GiB, 0.26"),
    Seen((0, 0, 0), 0.02, 0.02, 0.07, 7, "L40S, 24 and 48 GiB cards of 0.10 to 0.17"),
)
#: Several cards with NVLink (data-center), by tensor parallel size: 2, and 4 and more.
_CENTER_2 = (
    Seen((0, 21, 0), 0.60, 0.13, 2.11, 2, "H100, B300 of 0.26 and 0.27, TP 4"),
    Seen((0, 18, 0), 2.07, 2.06, 2.11, 11, "H100 of 0.19, with FlashInfer's all-reduce workspace"),
    Seen((0, 11, 0), 0.55, 0.54, 0.55, 2, "H100 of 0.11"),
    Seen((0, 0, 0), 1.38, 0.55, 1.84, 2, "H200 of 0.10.2: NCCL starts after the first snapshot"),
)
_CENTER_4 = (
    Seen((0, 21, 0), 0.60, 0.13, 2.21, 2, "H100, B300 of 0.26 and 0.27, TP 4"),
    Seen((0, 18, 0), 2.15, 2.13, 2.21, 5, "H100 of 0.19, with FlashInfer's all-reduce workspace"),
    Seen((0, 11, 0), 0.55, 0.54, 0.60, 2, "H100 of 0.11, TP 2"),
    Seen((0, 0, 0), 1.84, 1.38, 1.90, 1, "H200 of 0.10.2: NCCL starts after the first snapshot"),
)
_OTHER_2 = (Seen((0, 0, 0), 0.14, 0.10, 0.60, 4, "A100 and L40S class of 0.10 and 0.17, from what was left"),)
_OTHER_4 = (Seen((0, 27, 0), 1.7, 0.2, 1.8, 1, "TP 4 on PCIe cards, 0.27"),
            Seen((0, 0, 0), 0.21, 0.14, 0.95, 2, "A100 of 0.10, TP 4, from what was left"))  # fmt: skip
_STAGES = (
    Seen((0, 27, 0), 0.5, 0.07, 1.55, 2, "PP 2 of 0.27.1 and 0.28"),
    Seen((0, 0, 0), 0.07, 0.07, 0.07, 3, "PP 2 and 4 of 0.10 to 0.19, TP 1"),
)
#: Memory shared with the system: the figure moves with what the system does.
_SHARED = (
    Seen(
        (0, 0, 0), 3.1, -3.6, 6.52, 5, "GB10 of 0.13 to 0.27 (1.9, 2.2, 3.1, 3.7, 6.5): the system's own use is in it"
    ),
)
#: NCCL between hosts kept this much more than between two cards of one, in one public start (A100, 0.10.1, TP 2); what
#: it keeps follows from the network and its channels, which no flag of vLLM says: it is in the range, not the figure.
_NETWORK = int(0.92 * GIB)


def non_torch(machine: Machine, tp: int, pp: int, version: Version, nodes: int = 1) -> Estimate:
    """Bytes outside torch on one rank; nodes: hosts that the tensor-parallel ranks are on."""
    center = machine.compute_capability is not None and machine.compute_capability[0] in (9, 10)
    table: tuple[Seen, ...]
    if machine.unified:
        table = _SHARED
    elif pp > 1 and tp == 1:
        table = _STAGES
    elif tp == 1:
        table = _CENTER_1 if center else _OTHER_1
    elif tp < 4:
        table = _CENTER_2 if center else _OTHER_2
    else:
        table = _CENTER_4 if center else _OTHER_4
    seen = next((row for row in table if version >= row.since), table[-1])
    words = f"median of {seen.rows} public starts: {seen.note}"
    high = int(seen.high * GIB)
    if nodes > 1 and tp > 1:
        high += _NETWORK
        words += f"; NCCL between {nodes} hosts may keep {_NETWORK:,} B more: one public start"
    return Estimate("non_torch", int(seen.median * GIB), int(seen.low * GIB), high, words, _ROWS)
