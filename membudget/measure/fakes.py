"""Models on fake tensors: of the CPU, or of a CUDA device that need not be there, with the kernels torch chooses there.

Imports torch: only for a worker's own process.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from membudget.measure import models
from membudget.measure.allocator import Block, CachingAllocator
from membudget.measure.kernels import CudaKernels
from membudget.units import KIB, MIB

Found = TypeVar("Found")
#: cuBLAS's workspace, which torch takes from the caching allocator at the first product and keeps: 2 x 4 MiB + 8 x
#: 16 KiB (CUBLAS_WORKSPACE_CONFIG's default, aten/src/ATen/cuda/CublasHandlePool.cpp); 32 MiB on Hopper.
WORKSPACE, WORKSPACE_HOPPER = 8 * MIB + 128 * KIB, 32 * MIB


@dataclass(frozen=True)
class Target:
    """What is traced for."""

    device: str = "cpu"  # cpu, or cuda
    capability: tuple[int, int] = (9, 0)  # of the CUDA device


@dataclass
class Fake:
    """One model on fake tensors."""

    mode: Any  # the FakeTensorMode
    model: Any
    device: str  # where its tensors say that they are: cuda:0, or cpu where this torch cannot trace the model there
    target: Target
    kernels: dict[str, int] = field(default_factory=dict)  # attention kernels by how often they were chosen

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the model: `CannotBuild` where its class looks into its tensors' data."""
        from torch._subclasses import fake_tensor as fake

        looks = (fake.DataDependentOutputException, fake.DynamicOutputShapeException, fake.UnsupportedOperatorException)
        cuda = CudaKernels(self.target.capability) if self.target.device == "cuda" else None
        try:
            with self.mode, torch.no_grad(), models.masks_as_in_production(), cuda or contextlib.nullcontext():
                yield
        except looks as error:
            raise models.CannotBuild(
                f"{type(self.model).__name__} cannot be traced: what it does depends on the data of a tensor "
                f"({getattr(error, 'func', error)}), and fake tensors have none. Measure it instead: `membudget probe`",
                code="data_dependent",
            ) from None
        finally:
            if cuda is not None:
                self.kernels.update(cuda.chosen)

    def tokens(self, batch: int, tokens: int) -> Any:
        """A prompt; its memory does not depend on what it says."""
        return torch.zeros((batch, tokens), dtype=torch.long, device=self.device)

    def tensors(self) -> list[Any]:
        """Parameters and buffers."""
        return [*self.model.parameters(), *self.model.buffers()]

    def load(self, allocator: CachingAllocator) -> list[Block]:
        """Allocate the weights, one by one as loading does, and cuBLAS's workspace."""
        seen: set[int] = set()
        blocks = []
        for module in self.model.modules():
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                if tensor is None or tensor.untyped_storage()._cdata in seen:
                    continue
                seen.add(tensor.untyped_storage()._cdata)
                if size := int(tensor.untyped_storage().nbytes()):
                    blocks.append(allocator.malloc(size))
        blocks.append(allocator.malloc(WORKSPACE))
        return blocks


#: Fake models of this process by what they were made from; they take no memory.
_FAKES: dict[tuple[str, str, str, str], Fake] = {}


def fake(raw: dict[str, Any], dtype: str, attention: str, target: Target, device: str = "") -> Fake:
    """The model on fake tensors of the target's device, or of `device`.  Made once."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    device = device or ("cuda:0" if target.device == "cuda" else "cpu")
    key = (json.dumps(raw, sort_keys=True), dtype, attention, f"{target} {device}")
    if key not in _FAKES:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        model = models.fake_model(models.read_config(raw), dtype, attention, mode, device)
        _FAKES[key] = Fake(mode, model, device, target)
    made = _FAKES[key]
    made.kernels.clear()
    return made


def fused(raw: dict[str, Any], dtype: str, target: Target, device: str = "") -> Fake:
    """The fake model with fused attention, or without where the class has none."""
    try:
        return fake(raw, dtype, "sdpa", target, device)
    except models.CannotBuild:
        return fake(raw, dtype, "eager", target, device)


def on_target(target: Target, run: Callable[[str], Found]) -> Found:
    """`run("")`, on fake tensors of the target's device; where this torch cannot, `run("cpu")`.

    A torch without CUDA guards some operations' device, so that fake CUDA tensors fail in them; CUDA's kernels are
    chosen for tensors of the CPU as well.
    """
    if target.device != "cuda" or torch.cuda.is_available():
        return run("")
    try:
        return run("")
    except models.CannotBuild:
        raise
    except (RuntimeError, AssertionError, NotImplementedError):
        return run("cpu")
