"""What the installed transformers holds of a model, without its memory: weights, cache, peak, on fake tensors.

    python -m membudget.measure.survey < JOB > ANSWERS

Runs in the environment of the version that is asked, and imports nothing of membudget but
its probes.  JOB: {"subjects": [{"id", "config", "dtype", "ctx", "users"}]}.  ANSWERS, a line
each: {"versions": {...}} first, then {"id", "lines": {...}} or {"id", "error"}.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

#: What counts as the bytes of a cache: storages, whatever views are on them.
LINES = ("params", "weights", "kv_cache", "prefill_peak")


def main(hook: Callable[[], None] | None = None) -> int:
    """Answer one job.  hook: called before anything is built, for tests that break transformers on purpose."""
    job = json.load(sys.stdin)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    if hook is not None:
        hook()
    say({"versions": {"torch": torch.__version__, "transformers": transformers.__version__, "python": _python()}})
    for subject in job["subjects"]:
        try:
            say({"id": subject["id"], "lines": ask(subject)})
        except Exception as error:  # one model that is not built never hides the others
            text = " ".join(str(error).replace(tempfile.gettempdir(), "").split())
            say({"id": subject["id"], "error": f"{type(error).__name__}: {text[:300]}"})
    return 0


def say(document: dict[str, Any]) -> None:
    """One line, at once."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def ask(subject: dict[str, Any]) -> dict[str, int]:
    """Lines of one model: params (count), and in bytes weights, kv_cache after `ctx` tokens, and the prefill's peak.

    The prompt has one token less than `ctx`, and one decode step follows: what a prompt alone
    leaves behind is freed with it.  The peak is of all but weights and buffers, the cache included;
    it is left out where routing depends on data, as experts of older versions do.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from membudget.measure import models

    config = models.read_config(subject["config"])
    first: Exception | None = None
    for attention in ("sdpa", "eager"):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            model = models.fake_model(config, subject["dtype"], attention, mode)
        except models.CannotBuild as error:
            first = first or error
            continue
        for experts in ("as they are", "tensor", "pair"):
            if experts != "as they are" and not _skip_experts(model, experts):
                break
            try:
                return _run(model, mode, subject, whole=experts == "as they are")
            except Exception as error:
                first = first or error
    assert first is not None
    raise first


def _run(model: Any, mode: Any, subject: dict[str, Any], whole: bool) -> dict[str, int]:
    import torch

    from membudget.measure import models
    from membudget.measure.trace import cache_tensors, counter_bytes, storage_bytes
    from membudget.measure.tracker import Tracker

    parameters = list(model.parameters())
    found = {"params": sum(item.numel() for item in parameters), "weights": storage_bytes(parameters)}
    batch, ctx = subject["users"], subject["ctx"]
    with mode, torch.no_grad(), models.masks_as_in_production():
        prompt = torch.zeros((batch, max(ctx - 1, 1)), dtype=torch.long)
        token = torch.zeros((batch, 1), dtype=torch.long)
        tracker = Tracker([*parameters, *model.buffers(), prompt])
        with tracker:
            out = _forward(model, prompt)
        cache = models.cache_of(out)
        del out
        if ctx > 1:
            cache = models.cache_of(_forward(model, token, cache))
        tensors = cache_tensors(cache)
        found["kv_cache"] = storage_bytes(tensors) - counter_bytes(tensors)
    if whole:
        found["prefill_peak"] = tracker.peak
    return found


def _forward(model: Any, tokens: Any, cache: Any = None) -> Any:
    from membudget.measure import models

    try:
        return models.forward(model, tokens, "last", cache)
    except models.CannotBuild:
        return models.forward(model, tokens, "every", cache)


def _skip_experts(model: Any, answer: str) -> bool:
    """Blocks of experts hand their input on: what they compute does not reach the cache's size.

    answer: ``tensor``, or ``pair`` where a block also returns its router's logits.  False where there are none.
    """
    blocks = [module for module in model.modules() if hasattr(module, "experts")]
    for module in blocks:
        module.forward = (lambda hidden, *_, **__: hidden) if answer == "tensor" else _pair
    return bool(blocks)


def _pair(hidden: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    return hidden, None


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


if __name__ == "__main__":
    sys.exit(main())
