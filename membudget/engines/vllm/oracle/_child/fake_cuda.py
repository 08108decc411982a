"""Makes a CPU build of vLLM believe that it runs on a CUDA device, so that it can be asked about one.

Runs inside the asked vLLM's own Python; it imports nothing of membudget.  Nothing is
ever computed: models are built on the meta device, and only their sizes are read.
Works where the Python of the CPU wheel equals that of the CUDA wheel (0.32.0 does,
except for platform detection and vendored kernels).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any, ClassVar

#: Compiled parts that only the CUDA wheel ships.
_EXTENSIONS = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._C",
    "vllm._moe_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm._flashkda_C",
)
_OP_NAMESPACES = ("_C", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_vllm_fa2_C", "_vllm_fa3_C")
#: Kernel languages that some models import while they are built.
_KERNEL_PACKAGES = ("cutlass", "quack", "cuda")
_absent: set[str] = set()
#: Python that is copied into the CUDA wheel beside its compiled part.
_WHEEL_ONLY = "vllm.third_party.flashmla."


class _Nothing:
    """Stands for streams and events: every method does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *exc: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _Anything(types.ModuleType):
    """Stands for a kernel package: any attribute is another one; a decorator gives back its function."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        child = _Anything(f"{self.__name__}.{name}")
        setattr(self, name, child)
        return child

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else _Anything("x")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, key: Any) -> _Anything:
        return _Anything("x")

    def __or__(self, other: Any) -> _Anything:
        return self

    __ror__ = __or__


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in _absent or name.startswith(_WHEEL_ONLY):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def _platform(capability: tuple[int, int], total_bytes: int, name: str, integrated: bool) -> Any:
    import vllm.platforms as platforms
    import vllm.platforms.cuda as cuda
    from vllm.platforms.interface import DeviceCapability

    answers: dict[str, Any] = {
        "get_device_capability": lambda cls, device_id=0: DeviceCapability(*capability),
        "get_device_name": lambda cls, device_id=0: name,
        "get_device_uuid": lambda cls, device_id=0: "GPU-0",
        "get_device_total_memory": lambda cls, device_id=0: total_bytes,
        "is_fully_connected": lambda cls, ids: True,
        "is_integrated_gpu": lambda cls, device_id=0: integrated,
        "num_compute_units": lambda cls, device_id=0: 132,
        "import_kernels": lambda cls: None,
        "device_count": lambda cls: 16,
        "set_device": lambda cls, device: None,
        "is_pin_memory_available": lambda cls: False,
        "current_device": lambda cls: 0,
        "log_warnings": lambda cls: None,
        "manual_seed_all": lambda cls, seed: None,
        "is_arch_support_pdl": lambda cls: capability[0] >= 9,
    }
    platforms.vllm_version_matches_substr = lambda substring: False
    kind = type("AskedCuda", (cuda.CudaPlatformBase,), {key: classmethod(value) for key, value in answers.items()})
    platforms._current_platform = kind()
    return platforms._current_platform


def _torch_runtime(capability: tuple[int, int], total_bytes: int, name: str, integrated: bool) -> None:
    import torch

    properties = types.SimpleNamespace(
        major=capability[0],
        minor=capability[1],
        name=name,
        multi_processor_count=132,
        total_memory=total_bytes,
        is_integrated=integrated,
        shared_memory_per_block_optin=232448,
        warp_size=32,
        L2_cache_size=50 << 20,
    )
    runtime: Any = torch.cuda
    runtime.Stream = runtime.Event = torch.Event = _Nothing  # type: ignore[misc, assignment]
    runtime.current_stream = runtime.default_stream = runtime.stream = lambda *a, **k: _Nothing()
    runtime.current_device = lambda: 0
    runtime.get_device_capability = lambda *a, **k: capability
    runtime.get_device_properties = lambda *a, **k: properties
    runtime.get_device_name = lambda *a, **k: name
    runtime.device_count = lambda: 16
    runtime.is_available = lambda: False
    accelerator: Any = torch.accelerator
    accelerator.current_device_index = lambda: 0
    accelerator.device_count = lambda: 16
    accelerator.is_available = lambda: False
    accelerator.current_stream = lambda *a, **k: _Nothing()
    accelerator.synchronize = accelerator.empty_cache = lambda *a, **k: None


def _missing_ops(capability: tuple[int, int]) -> None:
    """Answer feature probes of custom CUDA ops; a call of any other op is an error."""
    import torch._ops as ops

    namespace: Any = ops._OpNamespace
    original = namespace.__getattr__

    class Op:
        def __init__(self, name: str) -> None:
            self.name = name
            self.default = self.out = self

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if "support" in self.name:
                return capability[0] >= 9
            raise RuntimeError(f"custom op {self.name} was called while a model was built")

    def getattr_(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            if self.__dict__.get("name", self.__dict__.get("_name", "")) not in _OP_NAMESPACES:
                raise
            caller = sys._getframe(1).f_code
            # _custom_ops.py registers fakes for the ops it finds: there they must stay absent
            if "support" not in name and caller.co_name == "<module>" and caller.co_filename.endswith("_ops.py"):
                raise
            return Op(name)

    namespace.__getattr__ = getattr_


def install(
    capability: tuple[int, int] = (9, 0),
    total_bytes: int = 80 << 30,
    name: str = "NVIDIA H100 80GB HBM3",
    integrated: bool = False,
) -> None:
    """Call before anything of vLLM is imported."""
    for module in _EXTENSIONS:
        sys.modules.setdefault(module, types.ModuleType(module))
    import torch

    torch.version.cuda = "13.0"  # type: ignore[misc, unused-ignore]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _platform(capability, total_bytes, name, integrated)
    sys.meta_path.append(_Finder())
    _torch_runtime(capability, total_bytes, name, integrated)
    import vllm.utils.import_utils as import_utils

    import_utils.has_deep_gemm = lambda: True  # the sparse indexer refuses to be built without it
    _missing_ops(capability)


def without_torchvision() -> None:
    """Image processors import torchvision; the models that are asked here have none to run."""
    import importlib.util

    if importlib.util.find_spec("torchvision") is None:
        _absent.add("torchvision")
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.append(_Finder())


def before_models() -> None:
    """Call after the engine config exists, before the first model is built."""
    _absent.update(_KERNEL_PACKAGES)
