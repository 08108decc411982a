"""Traps in memory and processes: what endangers a run on this machine now, and the fix.

On a DGX Spark CPU and GPU share the memory; running out can hang the host until its power is cut
(NVIDIA/open-gpu-kernel-modules/issues/1358, vllm-project/vllm/issues/56824), so what takes memory there is a danger
where the same on a card of its own is a note.
"""

from __future__ import annotations

from collections.abc import Callable

from membudget.doctor.machine import Look, value
from membudget.doctor.source import Held, Process
from membudget.doctor.trap import State, Trap
from membudget.engines.vllm.profile.identity import free_source
from membudget.engines.vllm.versions import DEFAULT, VersionError, rules
from membudget.host.limits import UNIFIED_KEEP
from membudget.host.readings import Unknown
from membudget.host.system import WAITING
from membudget.units import GIB, MIB, gib

#: Programs of a desktop session, by their names in /proc (at most 15 letters there).
DESKTOP = (
    "gnome-shell", "Xorg", "Xwayland", "gdm-x-session", "gdm-wayland-ses", "mutter", "kwin_x11", "kwin_wayland",
    "plasmashell", "firefox", "firefox-bin", "chrome", "chromium", "code", "nautilus", "gnome-software",
    "cinnamon", "xfce4-session", "xfwm4", "sddm", "lightdm",
)  # fmt: skip
#: Watch MemAvailable and end a process before the host hangs.
GUARDS = ("earlyoom", "nohang")
#: earlyoom 1.8 takes percentages of MemAvailable + AnonPages, which CUDA's pages are not in; bytes mean what they say.
#: 6 and 4 GiB, under the 12 that a measurement keeps free; -s 100: also with swap.  Debian's /etc/default/earlyoom.
_EARLYOOM = (
    "echo 'EARLYOOM_ARGS=\"-M 6291456,4194304 -s 100 --prefer VLLM\"' | sudo tee /etc/default/earlyoom && "
    "sudo systemctl enable earlyoom && sudo systemctl restart earlyoom"
)
#: Below this nothing is said of what a process holds.
LITTLE = 64 * MIB
#: The highest share that is known to start on a DGX Spark: vllm-project/recipes/pull/632.
SPARK_SHARE = 0.85


def driver(look: Look) -> Trap:
    """A driver that is here and says nothing hides who holds the device's memory, and whose memory it is."""
    if look.trouble is None:
        failed = look.source.troubles.get("nvidia-smi")
        if failed and not look.gpus:
            text = f"nvidia-smi fails ({failed.detail}), and the kernel has no NVIDIA driver: no GPU is used"
            return Trap("driver", State.NOTE, text)
        return Trap("driver", State.CLEAR, "nvidia-smi answers" if look.gpus else "no NVIDIA GPU")
    text = f"{look.trouble}: what the GPU holds, and whether it shares this memory, is unknown"
    return Trap(
        "driver",
        State.DANGER,
        text,
        "start nothing until `nvidia-smi` and /proc/meminfo answer: restart, or install the driver anew",
    )


def _asks_driver(version: str, look: Look) -> bool:
    """Whether this vLLM takes the driver's figure for what is free; of a version that is not known it is assumed."""
    capability = look.machine.compute_capability if look.machine is not None else None
    try:
        return free_source(version, True, capability) == "driver"
    except VersionError:
        return True


def page_cache(look: Look) -> Trap:
    """The driver's free is MemFree: page cache counts as used, though the kernel gives it back."""
    if not look.unified_gpu:
        return Trap("page_cache", State.CLEAR, "the device's memory is its own, or there is no GPU")
    free, available = value(look.cuda_free), value(look.available)
    if free is None or available is None:
        return Trap("page_cache", State.UNKNOWN, "MemFree or MemAvailable is not known")
    cached = available - free
    total = value(look.total) or 0
    text = (
        f"cudaMemGetInfo's free is {gib(free, 2)}, but {gib(available, 2)} can be used (MemAvailable): "
        f"{gib(max(cached, 0), 2)} of page cache count as used"
    )
    if cached * 10 < total:
        return Trap("page_cache", State.CLEAR if cached < GIB else State.NOTE, text)
    version = None if isinstance(look.vllm, Unknown) else value(look.vllm.version)
    if version is not None and not _asks_driver(version, look):
        return Trap("page_cache", State.NOTE, f"{text}; vLLM {version} asks MemAvailable, so it does not matter there")
    return Trap("page_cache", State.DANGER, text, "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches")


def swap(look: Look) -> Trap:
    """With swap a host of one memory thrashes and hangs where a process should have been ended."""
    total, free = value(look.line("SwapTotal")), value(look.line("SwapFree"))
    if total is None or free is None:
        return Trap("swap", State.UNKNOWN, _reason(look.line("SwapTotal")))
    if not total:
        return Trap("swap", State.CLEAR, "swap is off")
    text = f"swap is on: {gib(total, 2)}, {gib(total - free, 2)} used"
    if not look.unified_gpu:
        return Trap("swap", State.NOTE if total - free > GIB else State.CLEAR, text)
    text += "; CUDA's pages cannot be swapped, so the rest of the system thrashes before anything is ended"
    used, fix = total - free, "sudo swapoff -a"
    available = value(look.available)
    if used and (available is None or available - used < UNIFIED_KEEP):
        # swapoff reads all of it back into memory: without room for it this is what hangs the host
        fix = f"first end what holds memory, until {gib(used + UNIFIED_KEEP, 2)} is available: swapoff brings all back"
        fix += "; then sudo swapoff -a"
    return Trap("swap", State.DANGER if used > GIB else State.NOTE, text, fix)


def zram(look: Look) -> Trap:
    """zram swaps into the same memory."""
    text = look.source.read("/proc/swaps")
    if text is None:
        return Trap("zram", State.UNKNOWN, "no /proc/swaps")
    devices = [line.split()[0] for line in text.splitlines()[1:] if line.startswith("/dev/zram")]
    if not devices:
        return Trap("zram", State.CLEAR, "no swap on zram")
    size = sum(_mm_stat(look, device) for device in devices)
    what = f"{', '.join(devices)} swaps into this same memory and holds {gib(size, 2)} of it"
    return Trap(
        "zram", State.DANGER if look.unified_gpu and size > GIB else State.NOTE, what, "sudo swapoff /dev/zram*"
    )


def thrashing(look: Look) -> Trap:
    """Tasks wait for memory already."""
    share = look.source.pressure()
    if share is None:
        return Trap("thrashing", State.UNKNOWN, "/proc/pressure/memory cannot be read")
    told = f"in the last 10 s some task waited for memory {share / 1000:g}% of the time (PSI)"
    if share < WAITING:
        return Trap("thrashing", State.CLEAR, told)
    return Trap("thrashing", State.DANGER, told, "end what holds the memory before anything else is started")


def engines(look: Look) -> Trap:
    """Another process holds device memory, or an engine runs."""
    held, running = look.held, look.source.processes()
    others = [item for item in held if not _small(item)] if not isinstance(held, Unknown) else []
    seen = {item.pid for item in others}
    started = [item for item in running if item.engine and item.pid not in seen] if isinstance(running, list) else []
    if not others and not started:
        if isinstance(held, Unknown) and (look.gpus or look.trouble or isinstance(running, Unknown)):
            more = f"; {running.reason}" if isinstance(running, Unknown) else "; no engine's process is seen"
            return Trap("engines", State.UNKNOWN, f"who holds device memory is not known: {held.reason}{more}")
        return Trap("engines", State.CLEAR, "no other process holds device memory, no engine runs")
    told = [_holds(item, running) for item in others]
    told += [f"{item.engine} runs (pid {item.pid}); how much it holds on the device is not known" for item in started]
    size = sum(item.size for item in others if not isinstance(item.size, Unknown))
    danger = size > GIB or any(isinstance(item.size, Unknown) for item in others) or bool(started and look.gpus)
    alive = {item.pid for item in running} if isinstance(running, list) else None
    # the first process is the system, and one that is not there is a driver's mistake
    ending = [
        item.pid
        for item in others
        if item.name not in DESKTOP and item.pid > 1 and (alive is None or item.pid in alive)
    ]
    hidden = [str(item.pid) for item in others if item.name not in DESKTOP and item.pid not in ending]
    if hidden and not ending and not started:
        whose = f"the driver's pid {', '.join(hidden)} is not seen here: another container's or user's"
        fix = f"stop what holds it ({whose}), then wait until MemAvailable is back"
        return Trap("engines", State.DANGER if danger else State.NOTE, "; ".join(told), fix)
    if not ending and not started:  # the screen: `desktop` says how to end it without losing work to a kill
        end = "nothing to stop for this; without a screen: sudo systemctl isolate multi-user.target"
        return Trap("engines", State.DANGER if danger else State.NOTE, "; ".join(told), end)
    pids = " ".join(str(pid) for pid in [*ending, *(item.pid for item in started)])
    fix = f"stop it (kill {pids}, or its service), then wait until MemAvailable is back: a closed port is not enough"
    return Trap("engines", State.DANGER if danger else State.NOTE, "; ".join(told), fix)


def desktop(look: Look) -> Trap:
    """A desktop session holds memory that a model could use."""
    running = look.source.processes()
    if isinstance(running, Unknown):
        return Trap("desktop", State.UNKNOWN, running.reason)
    shown = [item for item in running if item.name in DESKTOP]
    if not shown:
        return Trap("desktop", State.CLEAR, "no desktop session")
    sizes: dict[str, int] = {}
    for item in shown:
        sizes[item.name] = sizes.get(item.name, 0) + item.rss
    size = sum(sizes.values())
    most = sorted(sizes.items(), key=lambda pair: -pair[1])[:3]
    text = f"a desktop session holds {gib(size, 2)} (resident, shared pages counted in each): " + ", ".join(
        f"{name} {gib(rss, 2)}" for name, rss in most
    )
    reserve = look.machine.os_reserve if look.machine else 0
    state = State.DANGER if look.unified_gpu and size > reserve else State.NOTE
    if not look.source.platform.startswith("linux"):
        return Trap("desktop", State.NOTE, text)
    return Trap("desktop", state, text, "sudo systemctl isolate multi-user.target (back: graphical.target)")


def guard(look: Look) -> Trap:
    """Whether something ends a process before the host hangs."""
    if not look.unified_gpu:
        return Trap("guard", State.CLEAR, "only where CPU and GPU share the memory")
    running = look.source.processes()
    if isinstance(running, Unknown):
        return Trap("guard", State.UNKNOWN, running.reason)
    names = {item.name for item in running}
    watching = [name for name in GUARDS if name in names]
    if watching:
        return _thresholds(look, running) or Trap("guard", State.CLEAR, f"{', '.join(watching)} runs")
    text = "no earlyoom runs: when memory ends the host can hang until its power is cut, without an OOM kill"
    if any(name.startswith("systemd-oomd") for name in names):
        text = "systemd-oomd runs, but it goes by cgroups, and those do not see what CUDA holds; earlyoom does not run"
    return Trap("guard", State.NOTE, text, f"sudo apt install earlyoom && {_EARLYOOM}")


def _thresholds(look: Look, running: list[Process]) -> Trap | None:
    """earlyoom as it is installed ends a process where a full engine is still well: at a tenth of the memory."""
    pids = [item.pid for item in running if item.name == "earlyoom"]
    words = (look.source.read(f"/proc/{pids[0]}/cmdline") or "").split("\0") if pids else []
    total = value(look.total)
    if total is None or len(words) < 2 or any(word.startswith(("-m", "-M")) for word in words):
        return None
    text = f"earlyoom runs with its default and ends the largest process once {gib(total // 10, 2)} are available"
    return Trap("guard", State.NOTE, f"{text}; here {gib(UNIFIED_KEEP, 0)} are left at times", _EARLYOOM)


def utilization(look: Look) -> Trap:
    """vLLM's default share against what this machine can give."""
    machine, total = look.machine, value(look.total)
    if machine is None or total is None or machine.platform not in ("cuda", "rocm"):
        return Trap("utilization", State.CLEAR if machine else State.UNKNOWN, "no GPU that vLLM takes a share of")
    installed = None if isinstance(look.vllm, Unknown) else value(look.vllm.version)
    version = installed or DEFAULT
    try:
        default = rules(version).utilization
    except VersionError:
        version, default = DEFAULT, rules(DEFAULT).utilization
    least = value(look.available if machine.unified else look.cuda_free)
    if least is None and machine.unified:
        why = f"what is available is unknown ({_reason(look.available)}), so no share is safe"
        return Trap("utilization", State.DANGER, why, "start nothing until /proc/meminfo has a MemAvailable to go by")
    limits = [(total - machine.os_reserve, f"{gib(machine.os_reserve, 0)} are the operating system's")]
    if least is not None and machine.unified:
        # what a measurement is ended at: below it the host may hang
        limits.append((least - UNIFIED_KEEP, f"of {gib(least, 2)} available {gib(UNIFIED_KEEP, 0)} must stay free"))
    elif least is not None:
        limits.append((least, f"{gib(least, 2)} are free"))
    most, why = min(limits)
    most = max(most, 0)
    asks = total * default // 100
    share = min(most * 100 // total / 100, SPARK_SHARE if look.spark else 1.0)
    who = f"vLLM {version}" if installed else f"vLLM (none is installed; as of {version})"
    text = f"{who} claims {default / 100:.2f} of {gib(total, 2)} by default: {gib(asks, 2)}; {why}"
    if asks <= most and share >= default / 100:
        return Trap("utilization", State.CLEAR, text)
    if look.spark and share == SPARK_SHARE:
        text += f"; up to {SPARK_SHARE} is known to start on a DGX Spark"
    if share <= 0:
        return Trap("utilization", State.DANGER, text, "free memory first: there is none for vLLM to claim")
    return Trap("utilization", State.DANGER, text, f"vllm serve ... --gpu-memory-utilization {share:.2f}, or less")


def _small(item: Held) -> bool:
    return not isinstance(item.size, Unknown) and item.size < LITTLE


def _holds(item: Held, running: list[Process] | Unknown) -> str:
    known = next((one for one in running if one.pid == item.pid), None) if isinstance(running, list) else None
    name = f"{known.engine}: {item.name}" if known is not None and known.engine else item.name
    size = "an unknown amount" if isinstance(item.size, Unknown) else gib(item.size, 2)
    return f"{name} (pid {item.pid}) holds {size} on the device"


def _mm_stat(look: Look, device: str) -> int:
    """mem_used_total of a zram device, bytes."""
    fields = (look.source.read(f"/sys/block/{device.rpartition('/')[2]}/mm_stat") or "").split()
    return int(fields[2]) if len(fields) > 2 and fields[2].isdecimal() else 0


def _reason(reading: object) -> str:
    return reading.reason if isinstance(reading, Unknown) else "not known"


#: The most urgent first.
TRAPS: tuple[Callable[[Look], Trap], ...] = (
    driver,
    thrashing,
    engines,
    utilization,
    page_cache,
    swap,
    zram,
    desktop,
    guard,
)
