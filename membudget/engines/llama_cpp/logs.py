"""Explain what llama.cpp, llama-server, Ollama or LM Studio printed when it loaded a model.

Where every byte went by device, whether the figures agree with each other and with the arithmetic, what did not fit,
and what would.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from membudget.engines.llama_cpp.compute.header import ComputeError
from membudget.engines.llama_cpp.memory import caches
from membudget.engines.llama_cpp.plan import Server
from membudget.engines.llama_cpp.prints import HALF, Prints, mib, plain, read
from membudget.engines.llama_cpp.settings import CACHE_TYPES, FlashAttention, Settings
from membudget.errors import MembudgetError
from membudget.text.sanitize import printable, without_tokens

MIB = 2**20
#: What starts a server's log anew: Ollama's runners.
_START = re.compile(r'msg="starting (?:llama server|runner)"')
_FACTS = {
    "architecture": re.compile(r"(?:arch += +|general\.architecture str += +|\barchitecture=)([\w.-]+)"),
    "name": re.compile(r"general\.name +(?:str +)?= +(\S.*?) *$"),
    "type": re.compile(r"(?:file type|model ftype) += +(\S.*?) *$"),
    "size": re.compile(r"(?:file size|model size) += +([0-9.]+ [GM]iB)"),
}
_DEVICE = re.compile(r"using device (\w+) \((.*?)\)(?: \([^)]*\))* - (\d+) MiB free")
_WORKING_SET = re.compile(r"recommendedMaxWorkingSetSize += +([0-9.]+) MB")
_FAILED = re.compile(
    r"failed to allocate (\w+) buffer of size (\d+)|Device memory allocation of size (\d+) failed"
    r"|allocating ([0-9.]+) MiB on device (\d+): \w+ failed"
)
_BREAKDOWN = re.compile(
    r"(?:- |^\s*\| +)(\S.*?)(?: \((.*?)\))?:? *\|? +(?:(\d+) = +(\d+) \+ +|\d+ +)?"
    r"\(? *(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)\)?(?: \+ +(-?\d+))?"
)
_BREAKDOWN_LINE = re.compile(r"memory_breakdown(?:_print)?:|^\s*\| +(?:- )?\w+(?: \(.*\))? +\| +(?:\d+ = +)?\d+ ")
#: What -fit expects before it changes anything, in MiB, and what it changed.
_PROJECTED = re.compile(r"params_fit\w*: +- (\w+) +\(.*\) *: +(\d+) total, +(\d+) used, +-?\d+ (?:deficit|free)")
_REDUCED = re.compile(r"context size reduced from (\d+) to (\d+)")


@dataclass(frozen=True)
class Failure:
    """A buffer that could not be allocated."""

    #: as printed; empty where only a size is
    device: str
    bytes: int


@dataclass(frozen=True)
class Breakdown:
    """One row of the table that llama.cpp prints when it ends, in bytes."""

    device: str
    #: of the device: all, and free
    total: int
    free: int
    model: int
    context: int
    compute: int
    #: taken by the driver and by others; negative where free was counted twice
    other: int


@dataclass(frozen=True)
class Log:
    """One load of a model."""

    prints: Prints
    #: architecture, name, type, size, as printed
    facts: Mapping[str, str] = field(default_factory=dict)
    #: free bytes of a device before the model was loaded
    free: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    breakdown: tuple[Breakdown, ...] = ()
    #: (bytes of a device, bytes that -fit expected on it before it changed anything)
    projected: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: (tokens asked for, tokens that -fit took), where it took fewer
    reduced: tuple[int, int] | None = None

    @property
    def places(self) -> dict[str, dict[str, int]]:
        """Bytes by device and bucket: weights, kv_cache, activations."""
        found: dict[str, dict[str, int]] = {}
        prints = self.prints
        for bucket, buffers in (
            ("weights", prints.model),
            ("kv_cache", prints.kv),
            ("kv_cache", prints.rs),
            ("activations", prints.output),
            ("activations", prints.compute),
        ):
            for name, size in buffers.items():
                place = found.setdefault(device(name), {})
                place[bucket] = place.get(bucket, 0) + size
        if not found:
            for row in self.breakdown:
                found[device(row.device)] = {
                    "weights": row.model, "kv_cache": row.context, "activations": row.compute,
                }  # fmt: skip
        return found

    @property
    def found(self) -> bool:
        """Whether there is anything of llama.cpp's in it."""
        prints = self.prints
        return bool(self.places or self.failures or self.projected or prints.caches or prints.context)


@dataclass(frozen=True)
class Explained:
    """What `membudget log` says: 0 all agrees, 1 it did not start or something differs, 2 nothing of llama.cpp's."""

    code: int
    text: str
    document: dict[str, Any]


def device(name: str) -> str:
    """``host`` for memory of the host, else the device's name: ``CUDA0``."""
    if name.startswith(("CPU", "Host")) or (name.endswith(("_Host", "_Mapped")) and not name.startswith("Metal")):
        return "host"
    return name.removesuffix("_Mapped").removesuffix("_Private")


def read_logs(text: str) -> list[Log]:
    """Every load in `text`; an Ollama log may hold many."""
    lines = plain(text).splitlines()
    starts = [number for number, line in enumerate(lines) if _START.search(line)] or [0]
    logs = [_read(lines[start:end]) for start, end in zip([0, *starts], [*starts, len(lines)], strict=True)]
    return [log for log in logs if log.found]


def _read(lines: list[str]) -> Log:
    facts: dict[str, str] = {}
    free: dict[str, int] = {}
    failures: list[Failure] = []
    breakdown: dict[str, Breakdown] = {}
    projected: dict[str, tuple[int, int]] = {}
    reduced: tuple[int, int] | None = None
    for line in lines:
        for name, pattern in _FACTS.items():
            if found := pattern.search(line):
                facts.setdefault(name, found[1].strip('"'))
        if found := _DEVICE.search(line):
            free[found[1]] = int(found[3]) * MIB
        elif found := _WORKING_SET.search(line):
            # decimal: Metal's own figure divided by 1e6
            free["Metal"] = round(float(found[1]) * 10**6)
        elif found := _PROJECTED.search(line):
            projected.setdefault(found[1], (_mib(found[2]), _mib(found[3])))
        elif found := _REDUCED.search(line):
            reduced = int(found[1]), int(found[2])
        elif found := _FAILED.search(line):
            _failed(failures, found)
        elif _BREAKDOWN_LINE.search(line) and (found := _BREAKDOWN.search(line)):
            _, total, unused, _, model, context, compute, other = (found[1], *map(_mib, found.groups()[2:]))
            breakdown[found[1]] = Breakdown(found[1], total, unused, model, context, compute, other)
    rows = tuple(breakdown.values())
    return Log(read("\n".join(lines)), facts, free, tuple(failures), rows, projected, reduced)


def _mib(text: str | None) -> int:
    return int(text or 0) * MIB


def _failed(failures: list[Failure], found: re.Match[str]) -> None:
    """A driver's line and ggml's are about one buffer."""
    named, exact, bare, size, number = found.groups()
    if named:
        one = Failure(named, int(exact))
        failures[:] = [old for old in failures if not _same(old, one)]
    else:
        one = Failure(f"device {number}" if number else "", int(bare) if bare else mib(size))
        if any(abs(old.bytes - one.bytes) <= HALF for old in failures):
            return
    if one not in failures:
        failures.append(one)


def _same(unnamed: Failure, named: Failure) -> bool:
    return not unnamed.device[:1].isupper() and abs(unnamed.bytes - named.bytes) <= HALF


def settings_of(prints: Prints) -> Settings:
    """The settings that a log names, with llama-server's own for the rest."""
    context = prints.context
    slots = int(context.get("n_seq_max", "1"))
    first = prints.caches[0] if prints.caches else None
    known = first is not None and first.type_k in CACHE_TYPES and first.type_v in CACHE_TYPES
    flash = context.get("flash_attn", "0") in ("1", "enabled", "true", "auto")
    return Settings(
        int(context.get("n_ctx", first.cells if first else 0)),
        slots,
        kv_unified=context.get("kv_unified", "true" if slots == 1 else "false") in ("true", "1"),
        batch_size=int(context.get("n_batch", "2048")),
        ubatch_size=int(context.get("n_ubatch", "512")),
        flash_attn=FlashAttention.ON if flash else FlashAttention.OFF,
        cache_type_k=first.type_k if first and known else "f16",
        cache_type_v=first.type_v if first and known and flash else "f16",
    )


def differences(log: Log, server: Server | None = None) -> list[str]:
    """What does not add up: buffers against their sum, and caches against the arithmetic where the file is known."""
    prints, found = log.prints, []
    sizes, parts = sum(prints.kv.values()), prints.cache_bytes
    slack = 2 * HALF * (len(prints.kv) + len(prints.caches))
    if sizes and parts and abs(sizes - parts) > slack:
        found.append(f"KV buffers are {_text(sizes)} and the caches {_text(parts)}")
    if server is None or not parts:
        return found
    try:
        ours = sum(part.bytes for part in caches(server.header, settings_of(prints)) if part.name != "recurrent")
    except (ComputeError, MembudgetError) as error:
        return [*found, str(error)]
    if abs(ours - parts) > slack:
        found.append(f"the caches are {_text(parts)}; the arithmetic of the file says {_text(ours)}")
    return found


def remedies(log: Log, server: Server | None = None) -> list[str]:
    """Settings that would fit, for a load that failed or a device that is too full."""
    full = [
        (name, sum(parts.values()), log.free[name])
        for name, parts in log.places.items()
        if name in log.free and sum(parts.values()) > log.free[name]
    ]
    if not log.failures and not full:
        return []
    found = []
    prints = log.prints
    cache = prints.cache_bytes or sum(prints.kv.values())
    tokens = int(prints.context.get("n_ctx", prints.caches[0].cells if prints.caches else 0))
    for name, need, room in full:
        over = need - room
        if cache and tokens and over < cache:
            fits = int(tokens * (1 - over / cache)) // 256 * 256
            found.append(
                f"-c {fits}: {name} is {_text(over)} over, and a token of the cache takes {cache // tokens:,} B"
            )
    if server is not None and log.free:
        limits = {str(number): size for number, size in enumerate(log.free.values())}
        here = replace(server, limits=limits, devices=len(limits))
        wanted = settings_of(prints)
        if longest := here.longest(wanted):
            found.append(f"-c {longest}: the longest that fits with all layers on devices")
        elif layers := here.most_layers(wanted):
            found.append(f"-ngl {layers}: as many layers as fit with -c {wanted.ctx_size or 'of the model'}")
    if log.failures:
        found.append("-ub 256 or less: the compute buffer goes down with it")
        if "q8_0" not in {cache.type_k for cache in prints.caches} and cache:
            found.append("-ctk q8_0 -ctv q8_0 -fa on: the cache takes 17/32 of it")
        found.append("-ngl with fewer layers, or --n-cpu-moe for a model with experts")
    return found


def explain(text: str, server: Server | None = None) -> Explained:
    """All loads in `text`.  server: the file it loaded, where that is known."""
    logs = read_logs(text)
    if not logs:
        return Explained(2, "no llama.cpp start-up in it", {"loads": []})
    blocks, documents, code = [], [], 0
    for log in logs:
        differs, helps = differences(log, server), remedies(log, server)
        code = max(code, 1 if differs or log.failures else 0)
        blocks.append(_block(log, differs, helps))
        documents.append(_document(log, differs, helps))
    return Explained(code, "\n\n".join(blocks), {"loads": documents})


def _block(log: Log, differs: list[str], helps: list[str]) -> str:
    prints, facts = log.prints, log.facts
    title = " ".join(facts[name] for name in ("name", "architecture", "type", "size") if name in facts)
    lines = [f"llama.cpp: {title}" if title else "llama.cpp"]
    if log.failures:
        lines.append("it did not start, or only after it tried again:")
        lines += [
            f"  {_text(one.bytes)} could not be allocated on {one.device or 'the device'}" for one in log.failures
        ]
    for name, (total, used) in log.projected.items():
        told = f"{_text(used - total)} more than it has" if used > total else "fits"
        lines.append(f"  {name}: -fit expected {_text(used)} of {_text(total)}: {told}")
    if log.reduced:
        lines.append(f"  -fit took -c {log.reduced[1]:,} in place of {log.reduced[0]:,}")
    if log.places:
        lines.append(f"  {'':14}{'weights':>12}{'kv cache':>12}{'buffers':>12}{'in all':>12}")
    for name, parts in log.places.items():
        row = [parts.get(bucket, 0) for bucket in ("weights", "kv_cache", "activations")]
        lines.append(f"  {name:14}" + "".join(f"{_text(size):>12}" for size in (*row, sum(row))))
    for cache in prints.caches:
        cells = f"{cache.cells:,} cells of {cache.layers} layers, " if cache.cells else ""
        kind = " of windows" if cache.window else ""
        lines.append(f"  cache{kind}: {cells}keys {cache.type_k}, values {cache.type_v}: {_text(cache.size)}")
    lines += [f"  states: {state.cells} of {state.layers} layers: {_text(state.size)}" for state in prints.states]
    if prints.offloaded:
        on, of = prints.offloaded
        lines.append(f"  {on} of {of} layers on devices" + ("" if on == of else f"; {of - on} on the host"))
    lines += [f"  differs: {one}" for one in differs]
    lines += [f"  would help: {one}" for one in helps]
    return printable(without_tokens("\n".join(lines)))


def _document(log: Log, differs: list[str], helps: list[str]) -> dict[str, Any]:
    prints = log.prints
    return {
        "facts": dict(log.facts), "context": dict(prints.context), "places": log.places, "free": dict(log.free),
        "caches": [
            {"bytes": cache.size, "cells": cache.cells, "layers": cache.layers, "type_k": cache.type_k,
             "type_v": cache.type_v, "window": cache.window}
            for cache in prints.caches
        ],
        "states": [{"bytes": state.size, "cells": state.cells} for state in prints.states],
        "projected": {name: {"total": total, "used": used} for name, (total, used) in log.projected.items()},
        "reduced": list(log.reduced or ()),
        "failures": [{"device": one.device, "bytes": one.bytes} for one in log.failures],
        "differs": differs, "would_help": helps,
    }  # fmt: skip


def _text(size: int) -> str:
    return f"{size / MIB:,.2f} MiB" if size < 10 * 2**30 else f"{size / 2**30:,.2f} GiB"


__all__ = ["Breakdown", "Explained", "Failure", "Log", "device", "differences", "explain", "read_logs", "remedies"]
