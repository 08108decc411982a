"""The tracker against storages counted by hand and against the allocator's own events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cpu

torch = pytest.importorskip("torch")

CONFIG = Path(__file__).parents[1] / "fixtures" / "tiny" / "llama.json"


def _tracker(**more: Any) -> Any:
    from membudget.measure.tracker import Tracker

    return Tracker(**more)


def test_views_cost_nothing_and_storages_once() -> None:
    """A view, a transpose and a slice are the same storage; a clone is one more; all of it goes when let go."""
    with _tracker() as tracker:
        base = torch.zeros(100, 10)
        views = [base.t(), base[5:], base.view(-1), base.expand(3, 100, 10)]
        assert tracker.live == 4000
        copy = base.clone()
        assert tracker.live == tracker.peak == 8000
        del base
        assert tracker.live == 8000
        del views
        assert tracker.live == 4000
        del copy
    assert (tracker.live, tracker.peak) == (0, 8000)
    assert [(item.op, item.bytes) for item in tracker.at_peak()] == [("zeros.default", 4000), ("clone.default", 4000)]


def test_peak_is_of_one_moment() -> None:
    """Two temporaries that are never alive together make a peak of one."""
    with _tracker() as tracker:
        for _ in range(3):
            torch.zeros(1000).add(1)
    assert tracker.peak == 8000


def test_ignored_rounded_and_limited() -> None:
    """Weights are left out, CUDA's 512 bytes are counted whole, and the ceiling is an exception that leaves nothing."""
    from membudget.measure.tracker import CeilingExceeded

    weight = torch.zeros(10)
    with _tracker(ignore=[weight], round_to=512) as tracker:
        weight.add_(1)
        assert tracker.live == 0
        kept = weight + 1
        assert tracker.live == 512
        del kept
    with _tracker(ceiling=4000) as tracker:
        kept = torch.zeros(900)
        with pytest.raises(CeilingExceeded, match=r"over the ceiling of 4,000 bytes"):
            kept + 1
        assert tracker.live == 3600


def test_resized_storages_are_counted_anew() -> None:
    """A tensor that grows in place grows here."""
    with _tracker() as tracker:
        tensor = torch.zeros(10)
        tensor.resize_(1000)
        assert tracker.live == 4000


def test_equal_to_the_allocators_own_events() -> None:
    """A real forward: the tracker's peak is the one that torch.profiler's allocation events add up to."""
    from torch.profiler import ProfilerActivity, profile

    from membudget.measure import models

    config = models.read_config(json.loads(CONFIG.read_text("utf-8")))
    for attention in ("eager", "sdpa"):
        model = models.random_model(config, "fp32", "cpu", attention)  # 16-bit kernels take scratch of their own
        prompt = torch.ones((2, 64), dtype=torch.long)
        with torch.no_grad():
            models.forward(model, prompt, "last")  # what is made once and kept
            with _tracker(ignore=[*model.parameters(), *model.buffers(), prompt]) as tracker:
                models.forward(model, prompt, "last")
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
                models.forward(model, prompt, "last")
        live = peak = 0
        events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
        for event in sorted(events, key=lambda event: event.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        # scalars that kernels make for themselves
        assert abs(peak - tracker.peak) <= 64, attention


@pytest.mark.parametrize(
    ("config", "attention", "said"),
    [
        ("zai-org--glm-4-9b", "sdpa", "no 'chatglm' of its own: its class is in the model's repository"),
        ("openai--gpt-oss-20b", "sdpa", "'gpt_oss' has no sdpa attention"),
    ],
)
def test_what_cannot_be_traced_is_said(config: str, attention: str, said: str) -> None:
    """A class that is not in transformers, and one without fused attention: why, and what to ask instead."""
    from membudget.measure import models, trace

    raw = json.loads((CONFIG.parents[2] / "membudget" / "data" / "models" / f"{config}.json").read_text("utf-8"))
    with pytest.raises(models.CannotBuild, match=said) as caught:
        trace.trace(raw, tokens=8, attention=attention)
    assert "`membudget " in str(caught.value)
    assert "/tmp" not in str(caught.value)


def test_a_class_that_looks_into_its_tensors_is_said() -> None:
    """A forward that depends on a tensor's data cannot be traced, and the message names the class and the operation."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from membudget.measure import models
    from membudget.measure.fakes import Fake, Target

    class Looks(torch.nn.Module):
        """Takes the non-zero places of its input."""

    looks = Fake(FakeTensorMode(allow_non_fake_inputs=True), Looks(), "cpu", Target("cpu"))
    with pytest.raises(models.CannotBuild, match="Looks cannot be traced") as caught, looks.running():
        torch.zeros(4).nonzero()
    assert caught.value.code == "data_dependent"
    assert "nonzero" in str(caught.value)


def test_a_caches_tensors_are_let_go() -> None:
    """Looking at a cache keeps nothing of it: without the garbage collector its bytes go with it."""
    import gc

    from membudget.measure.trace import cache_tensors

    gc.disable()
    try:
        with _tracker() as tracker:
            cache = {"layers": [{"keys": torch.zeros(100), "values": torch.zeros(100)}]}
            assert len(cache_tensors(cache)) == 2
            del cache
            assert tracker.live == 0
    finally:
        gc.enable()
