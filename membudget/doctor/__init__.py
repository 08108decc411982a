"""What `membudget doctor` finds: this machine, what can run on it, and the traps that endanger a run.

source    what is asked of the world; tests lay out a Spark's answers in its place
machine   the machine, its software and its memory, each a value or an explicit unknown
tiers     which test tiers run here, and the command that opens the others
traps     memory and processes: what endangers a run now, each with its fix
settings  the same for limits, environment variables, versions and disks
"""

from __future__ import annotations

from membudget.doctor.source import Source
from membudget.doctor.trap import State, Trap

__all__ = ["Source", "State", "Trap"]
