"""Faults that a worker commits on purpose after loading its model (`hook` of a request)."""

from __future__ import annotations

from typing import Any


def upcast(bench: Any) -> None:
    """One weight in fp32."""
    import torch

    bench.model.model.layers[1].mlp.up_proj.to(torch.float32)


def loaded_twice(bench: Any) -> None:
    """A second copy of one weight stays alive."""
    bench.second = bench.model.model.layers[1].mlp.down_proj.weight.detach().clone()


def doubled_cache(bench: Any) -> None:
    """Every layer of a DynamicCache keeps its keys and values a second time."""
    from transformers.cache_utils import DynamicLayer

    update = DynamicLayer.update

    def twice(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = update(self, *args, **kwargs)
        self.second = (self.keys.clone(), self.values.clone())
        return out

    DynamicLayer.update = twice


def logits_kept(bench: Any) -> None:
    """The model computes every logit whatever it is asked."""
    forward = bench.model.forward

    def every(input_ids: Any = None, cache: Any = None, use_cache: bool = True, logits_to_keep: int = 0) -> Any:
        return forward(input_ids=input_ids, cache=cache, use_cache=use_cache)

    bench.model.forward = every


def leak(bench: Any) -> None:
    """Every forward leaves one small tensor behind."""
    forward = bench.model.forward
    bench.kept = []

    def leaking(*args: Any, logits_to_keep: int = 0, cache: Any = None, **kwargs: Any) -> Any:
        import torch

        bench.kept.append(torch.zeros(256))
        return forward(*args, logits_to_keep=logits_to_keep, cache=cache, **kwargs)

    bench.model.forward = leaking


def memory_hog(bench: Any) -> None:
    """Allocates and touches memory until someone stops it, at most 3 GiB."""
    import time

    kept = []
    for _ in range(384):
        kept.append(bytearray(b"x") * (8 << 20))
        time.sleep(0.02)
