"""How much memory must stay free while something runs: every such constant, with its source."""

from __future__ import annotations

from membudget.units import GIB

#: Unified memory with CUDA, a server that has reached its size: below this the host was seen to be in trouble.
#: MemAvailable 23.8 -> 6.3 GiB in 5 s, then a hang (vllm-project/vllm/issues/56824); a step of 7.4 GiB in 3 s.
UNIFIED_KEEP = 12 * GIB
#: Unified memory with CUDA, a measurement, which allocates as fast as it can: MemAvailable was seen to fall from 34.0
#: to 12.7 GiB in 1.5 s, 14.2 GiB a second.  20 leaves a killer that needs 0.5 s more than the 12 above.
UNIFIED_FLOOR = 20 * GIB
#: The lowest floor that a user may choose there.
LEAST_UNIFIED_FLOOR = UNIFIED_KEEP
#: Elsewhere the operating system only needs room to breathe: an assumption.
DISCRETE_FLOOR = GIB
#: The floor follows the slope: what is falling by S bytes a second is ended while S x this are left.
SLOPE_SECONDS = 1.0


def default_floor(unified: bool) -> int:
    """Bytes under which a measurement is killed where nobody chose a floor."""
    return UNIFIED_FLOOR if unified else DISCRETE_FLOOR
