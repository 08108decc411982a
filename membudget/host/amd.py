"""AMD GPUs by what amdgpu and KFD say in /sys: which share the main memory, and how much each may use.

A GPU that shares the memory has two pools: VRAM, which firmware took from the main memory, and GTT, which it maps
(half of the memory unless ttm.pages_limit says more).  HIP and Vulkan allocate from the larger one: a Strix Halo with
4 GiB of VRAM and 96 GiB of GTT has "Total VRAM: 98304 MiB" (github.com/noamsto/nix-amd-ai/issues/42).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from membudget.host.system import System

_DRM, _NODES = "/sys/class/drm", "/sys/class/kfd/kfd/topology/nodes"
#: gfx_target_version of GPUs that share the main memory, from Raven to Strix Halo and Krackan: LLVM's AMDGPU guide.
#: gfx1036, the two units of desktop processors that drive a screen, is left out: models run on the CPU there.
SHARED = frozenset((90002, 90009, 90012, 100103, 100303, 100305, 110003, 110500, 110501, 110502, 110503))


@dataclass(frozen=True)
class Card:
    """One GPU, in bytes."""

    #: product_name, else what the processor's name says of its GPU, else its gfx number
    name: str
    vram: int
    gtt: int
    #: whether its memory is the main memory's
    shared: bool

    @property
    def limit(self) -> int:
        """What a program may allocate on it."""
        return max(self.vram, self.gtt) if self.shared else self.vram


def cards(system: System) -> list[Card]:
    """All that KFD, and so HIP, can use, in the driver's order; empty without KFD."""
    versions = _versions(system)
    if not versions and not system.folder("/sys/class/kfd"):
        return []
    found = []
    for card in system.folder(_DRM):
        base = f"{_DRM}/{card}/device"
        vram = _number(system.read(f"{base}/mem_info_vram_total"))
        if "-" in card or vram is None:
            continue
        name = (system.read(f"{base}/product_name") or "").strip()
        version = versions.get(_number(system.read(f"{base}/device")))
        shared = version in SHARED
        if version is None and not name:
            continue  # not one that KFD lists: a screen's
        if not name:
            name = _of_processor(system) if shared else ""
            name = name or f"AMD GPU gfx{_gfx(version or 0)}"
        found.append(Card(name, vram, _number(system.read(f"{base}/mem_info_gtt_total")) or 0, shared))
    return found


def _versions(system: System) -> dict[int | None, int]:
    """gfx_target_version by PCI device id, of KFD's nodes."""
    found: dict[int | None, int] = {}
    for node in system.folder(_NODES):
        text = system.read(f"{_NODES}/{node}/properties") or ""
        pairs = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        version = _number(pairs.get("gfx_target_version"))
        if version:
            found[_number(pairs.get("device_id"))] = version
    return found


def _of_processor(system: System) -> str:
    """ "AMD Radeon 8060S" of "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"."""
    named = re.search(r"model name.*?(Radeon[ \w]*)", system.read("/proc/cpuinfo") or "")
    return f"AMD {named[1].strip()}" if named else ""


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    try:
        return int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        return None


def _gfx(version: int) -> str:
    """1151 of 110501: the step is a hexadecimal digit."""
    return f"{version // 10000}{version // 100 % 100}{version % 100:x}"


__all__ = ["SHARED", "Card", "cards"]
