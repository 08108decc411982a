"""Which attention kernel torch would choose on CUDA, and its memory: for a trace on fake tensors, without a GPU.

On the CPU `scaled_dot_product_attention` takes other ways than on CUDA: MLA's unlike key and value heads go through
plain matrix products there, with every score in memory.  This mode puts CUDA's choice in its place.

Imports torch: only for a worker's own process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_ATEN = torch.ops.aten
#: The largest head that flash attention takes, and what its head size is padded to (sdp_utils.cpp, attention.cpp).
FLASH_HEAD, FLASH_PAD = 256, 8
#: Elements that the memory-efficient kernel's last dimensions and its bias are aligned to, at 16 bits.
EFFICIENT_ALIGN, BIAS_ALIGN = 8, 16


class Kernel(StrEnum):
    """torch's own names of its backends (torch.nn.attention.SDPBackend)."""

    FLASH = "FLASH_ATTENTION"
    EFFICIENT = "EFFICIENT_ATTENTION"
    MATH = "MATH"


def choose(query: Any, key: Any, value: Any, mask: Any, causal: bool, gqa: bool) -> Kernel:
    """The backend by the rules of aten/native/transformers/cuda/sdp_utils.cpp: sm_80 and newer, inference.

    cuDNN's is left out: workers run with TORCH_CUDNN_SDPA_DEPRIORITIZED=1.
    """
    if query.dim() != 4:
        return Kernel.MATH
    half = query.dtype in (torch.float16, torch.bfloat16)
    heads = (query.shape[1], key.shape[1], value.shape[1])
    same_heads = len(set(heads)) == 1
    sizes = (query.shape[-1], key.shape[-1], value.shape[-1])
    if not (query.shape[2] and key.shape[2]) or any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        return Kernel.MATH
    if (
        mask is None
        and half
        and len(set(sizes)) == 1
        and sizes[0] <= FLASH_HEAD
        and not (causal and query.shape[2] != key.shape[2])
        and (same_heads or gqa)
    ):
        return Kernel.FLASH
    align = EFFICIENT_ALIGN if half else EFFICIENT_ALIGN // 2
    if (
        (half or query.dtype is torch.float32)
        and same_heads
        and sizes[0] == sizes[1]
        and all(size % align == 0 for size in sizes)
    ):
        return Kernel.EFFICIENT
    return Kernel.MATH


class CudaKernels(TorchFunctionMode):
    """Runs attention as CUDA would; `chosen` counts the kernels.

    capability: of the device that is traced for.
    """

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        super().__init__()
        self.chosen: Counter[str] = Counter()
        self._capability, self._asked = capability, torch.cuda.get_device_capability

    def __enter__(self) -> CudaKernels:
        # transformers asks for it before it chooses kernels for experts
        torch.cuda.get_device_capability = lambda device=None: self._capability
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.cuda.get_device_capability = self._asked

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Everything but attention runs as it is."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in _GUARDED and args[0].device.type != "cpu":
            return _GUARDED[func](*args, **kwargs)
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        kernel = choose(query, key, value, attn_mask, is_causal, enable_gqa)
        self.chosen[kernel] += 1
        if kernel is Kernel.FLASH:
            size = query.shape[-1]
            if size % FLASH_PAD:
                pad = FLASH_PAD - size % FLASH_PAD
                query, key, value = (functional.pad(tensor, (0, pad)) for tensor in (query, key, value))
                scale = size**-0.5 if scale is None else scale
            flash = _ATEN._scaled_dot_product_flash_attention.default
            return flash(query, key, value, 0.0, is_causal, False, scale=scale)[0].narrow(-1, 0, size)
        if kernel is Kernel.EFFICIENT:
            efficient = _ATEN._scaled_dot_product_efficient_attention.default
            bias = _bias(attn_mask, query, key)
            return efficient(query, key, value, bias, False, 0.0, is_causal, scale=scale)[0]
        math = _ATEN._scaled_dot_product_attention_math.default
        return math(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)[0]


def get_item(tensor: Any, index: Any) -> Any:
    """`tensor[index]` by operations: torch's own indexing guards the device, and fails where CUDA is not built in."""
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(_dimensions(part) for part in parts)
    if Ellipsis in [part if part is Ellipsis else None for part in parts]:
        place = next(number for number, part in enumerate(parts) if part is Ellipsis)
        parts[place : place + 1] = [slice(None)] * (tensor.dim() - taken)
    tensors: list[Any] = []
    place = 0
    for part in parts:
        if part is None:
            tensor = _ATEN.unsqueeze.default(tensor, place)
            place += 1
        elif isinstance(part, bool):
            raise NotImplementedError("an index of a plain boolean")
        elif isinstance(part, int) or (hasattr(part, "__index__") and not isinstance(part, torch.Tensor)):
            tensor = _ATEN.select.int(tensor, place, int(part))
        elif isinstance(part, slice):
            if (part.start, part.stop, part.step) != (None, None, None):
                tensor = _ATEN.slice.Tensor(tensor, place, part.start, part.stop, part.step or 1)
            place += 1
        else:
            found = part if isinstance(part, torch.Tensor) else torch.tensor(part, device=tensor.device)
            tensors += [None] * (place - len(tensors)) + [found]
            place += found.dim() if found.dtype in (torch.bool, torch.uint8) else 1
    return _ATEN.index.Tensor(tensor, tensors) if tensors else tensor


def set_item(tensor: Any, index: Any, value: Any) -> None:
    """`tensor[index] = value` by operations; an index of tensors writes in place as well."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, (torch.Tensor, list)) for part in parts):
        found = [part if isinstance(part, torch.Tensor) else None for part in parts]
        given = (
            value
            if isinstance(value, torch.Tensor)
            else torch.full((), value, dtype=tensor.dtype, device=tensor.device)
        )
        _ATEN.index_put_.default(tensor, found, given)
        return
    view = get_item(tensor, index)
    if isinstance(value, torch.Tensor):
        _ATEN.copy_.default(view, value)
    else:
        _ATEN.fill_.Scalar(view, value)


def contiguous(tensor: Any, memory_format: Any = torch.contiguous_format) -> Any:
    """`tensor.contiguous()` by operations."""
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return _ATEN.clone.default(tensor, memory_format=memory_format)


#: Methods whose Python binding guards the device, and fails where CUDA is not built in.
_GUARDED: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: get_item,
    torch.Tensor.__setitem__: set_item,
    torch.Tensor.contiguous: contiguous,
    torch.Tensor.copy_: lambda tensor, other, non_blocking=False: _ATEN.copy_.default(tensor, other, non_blocking),
}


def _dimensions(part: Any) -> int:
    """How many of a tensor's dimensions one part of an index stands for."""
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def _bias(mask: Any, query: Any, key: Any) -> Any:
    """The mask as the memory-efficient kernel wants it: numbers of the query's dtype, rows aligned, expanded."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        wide = torch.zeros_like(mask, dtype=query.dtype)
        mask = wide.masked_fill_(mask.logical_not(), float("-inf"))
    length = mask.shape[-1]
    if length % BIAS_ALIGN:
        mask = functional.pad(mask, (0, BIAS_ALIGN - length % BIAS_ALIGN)).narrow(-1, 0, length)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
