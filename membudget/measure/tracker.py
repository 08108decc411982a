"""Counts the bytes of live tensors exactly: real ones on the CPU, fake and meta ones anywhere.

A storage is counted once, from the operation that makes it until its last tensor is gone,
so views cost nothing.  Scratch memory inside one operation (a kernel's own workspace) is
not seen, nor are tensors that no operation made (a memory-mapped file: see `adopt`).

    with Tracker() as tracker:
        model(tokens)
    tracker.peak, tracker.at_peak()

Imports torch: only for a worker's own process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from membudget.measure.allocator import Block, CachingAllocator


class CeilingExceeded(RuntimeError):
    """The counterpart of `torch.cuda.OutOfMemoryError`: live tensors went over our own ceiling."""


class Live(NamedTuple):
    """One storage that was alive at the peak.

    module: the dotted name of the module whose forward made it.  op: the operation, as aten names it.
    shape, dtype: of the tensor that came out first.  bytes: of the whole storage.
    """

    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class Tracker(TorchDispatchMode):
    """Live and peak bytes of all storages made while it is active.  All sizes in bytes.

    ignore: tensors that are not counted (weights, when only temporaries are asked for).
    round_to: each storage counts as a multiple of this; 512 is what CUDA's allocator does.
    ceiling: `CeilingExceeded` is raised by the operation that takes the live bytes above it.
    device: "" for all, else only storages on devices of this type.
    allocator: a simulated device that every storage is allocated on; its `OutOfMemory` is the operation's.
    """

    def __init__(
        self,
        ignore: Iterable[Any] = (),
        *,
        round_to: int = 1,
        ceiling: int | None = None,
        device: str = "",
        allocator: CachingAllocator | None = None,
    ) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.ceiling = ceiling
        self.where: Callable[[], str] = str
        self._round, self._device, self._allocator = round_to, device, allocator
        self._blocks: dict[int, Block] = {}
        self._sizes: dict[int, int] = {}
        self._made: dict[int, tuple[str, str, tuple[int, ...], str]] = {}
        self._at_peak: list[Live] | None = None
        self._snapshot: tuple[dict[int, int], dict[int, tuple[str, str, tuple[int, ...], str]]] = ({}, {})
        # A storage's address may be used again after it is gone, so what is ignored is watched as well.
        self._ignored: set[int] = set()
        for tensor in ignore:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._ignored:
                self._ignored.add(storage._cdata)
                weakref.finalize(storage, self._ignored.discard, storage._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count what it made."""
        out = func(*args, **(kwargs or {}))
        grown = False
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                grown |= self._count(tensor, str(func).removeprefix("aten."))
        if grown:
            self._look(func)
        return out

    def adopt(self, tensor: Any, op: str = "adopted") -> bool:
        """Count a tensor that no operation made (mapped from a file); False where it is counted already."""
        before = len(self._sizes)
        self._count(tensor, op)
        self.peak = max(self.peak, self.live)
        return len(self._sizes) > before

    def reset_peak(self) -> None:
        """Let the peak start again from what is alive now."""
        self.peak = self.live
        self._at_peak = None
        self._snapshot = (dict(self._sizes), dict(self._made))

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor's storage is counted."""
        return tensor.untyped_storage()._cdata in self._sizes

    def at_peak(self) -> list[Live]:
        """Every storage that was alive at the peak, the largest first."""
        if self._at_peak is None:
            sizes, made = self._snapshot
            found = [Live(*made[key], size) for key, size in sizes.items()]
            self._at_peak = sorted(found, key=lambda item: -item.bytes)
        return self._at_peak

    def now(self) -> list[Live]:
        """Every storage that is alive, the largest first."""
        found = [Live(*self._made[key], size) for key, size in self._sizes.items()]
        return sorted(found, key=lambda item: -item.bytes)

    def _count(self, tensor: Any, op: str) -> bool:
        if self._device and tensor.device.type != self._device:
            return False
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have none
            return False
        key = storage._cdata
        if key in self._ignored:
            return False
        size = -(-storage.nbytes() // self._round) * self._round
        known = self._sizes.get(key)
        if known == size:
            return False
        if known is None:
            if self._allocator is not None and storage.nbytes():
                self._blocks[key] = self._allocator.malloc(storage.nbytes())
            weakref.finalize(storage, self._gone, key)
            dtype = str(tensor.dtype).removeprefix("torch.")
            self._made[key] = (self.where(), op, tuple(int(extent) for extent in tensor.shape), dtype)
        self._sizes[key] = size
        self.live += size - (known or 0)
        return True

    def _look(self, func: Any) -> None:
        if self.live > self.peak:
            self.peak = self.live
            self._at_peak = None
            self._snapshot = (dict(self._sizes), dict(self._made))
        if self.ceiling is not None and self.live > self.ceiling:
            raise CeilingExceeded(
                f"{func} takes live tensors to {self.live:,} bytes, over the ceiling of {self.ceiling:,} bytes"
            )

    def _gone(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)
        self._made.pop(key, None)
        block = self._blocks.pop(key, None)
        if block is not None and self._allocator is not None:
            self._allocator.free(block)


class ModuleNames:
    """Knows which module of a model is running, by its dotted name; as `where` of a `Tracker`.

    with ModuleNames(model) as names:
        tracker.where = names.here
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._stack: list[str] = []
        self._hooks: list[Any] = []

    def here(self) -> str:
        """The innermost module that is running; empty outside of the model."""
        return self._stack[-1] if self._stack else ""

    def __enter__(self) -> ModuleNames:
        for name, module in self._model.named_modules():
            enter, leave = self._hooks_of(name)
            self._hooks.append(module.register_forward_pre_hook(enter))
            # always_call: a module that runs out of memory is left as well
            self._hooks.append(module.register_forward_hook(leave, always_call=True))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._stack.clear()

    def _hooks_of(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(module: Any, args: Any) -> None:
            self._stack.append(name)

        def leave(module: Any, args: Any, output: Any) -> None:
            if self._stack:
                self._stack.pop()

        return enter, leave
