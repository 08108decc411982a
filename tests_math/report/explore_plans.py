"""Random plans for the page, and what Python says of them."""

from __future__ import annotations

import random
from typing import Any

from membudget import formats, machines
from membudget.budgets.settings import Settings
from membudget.cli.commands.arguments import Arguments
from membudget.cli.commands.explore import _choice
from membudget.planning.ledger import Ledger, predict
from membudget.report import explore
from tests_math.planning.buckets import summed

#: Full attention, experts with a tied head, windows, latent caches, recurrent states, compressed entries.
MODELS = (
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3-30B-A3B",
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V2-Lite",
    "Qwen/Qwen3.5-9B",
    "deepseek-ai/DeepSeek-V4-Flash",
    "openai/gpt-oss-20b",
    "microsoft/phi-2",
)
START = explore.Start(8192, 8, ("dgx-spark", "h100-80gb", "rtx-4090"))


def choices(names: tuple[str, ...] = MODELS) -> list[explore.Choice]:
    """The models as the command reads them."""
    asked = {"family": None, "offline": True, "format": None, "kv_cache_dtype": "auto"}
    return [_choice(name, Arguments(**asked)) for name in names]


def draw(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One plan: any model and whatever applies to it, contexts and users of every size."""
    place = rng.randrange(len(document["models"]))
    model = document["models"][place]

    def applies(table: dict[str, Any]) -> str:
        return rng.choice([name for name, entry in table.items() if "error" not in entry])

    def number(bits: int) -> int:
        return rng.randint(1, 2 ** rng.randint(1, bits))

    engine = rng.choice(["arithmetic", "arithmetic", "transformers"])
    name = document["engines"][engine]["kv"]
    caches = {
        dtype: entry
        for dtype, entry in model["caches"].items()
        if name is None or entry.get("engine") in (None, name) or dtype == model["kv_cache_dtype"]
    }
    weights = {
        form: entry
        for form, entry in model["formats"].items()
        if engine != "transformers" or not entry.get("gguf") or form == model["format"]
    }
    return {
        "model": place,
        "format": applies(weights),
        "kv": applies(caches),
        "ctx": number(20),
        "users": number(10),
        "machine": rng.randrange(len(document["machines"])),
        "convention": rng.choice(["reported", "nominal"]),
        "engine": engine,
        "attention": rng.choice(["sdpa", "sdpa", "eager"]),
        "logits": rng.choice(["last", "last", "every"]),
        "batched": rng.choice([8192, 8192, number(16)]),
        "share": rng.choice([None, None, 1.0, 0.9, rng.uniform(0.01, 1)]),
    }


def answer(found: list[explore.Choice], known: list[machines.Machine], plan: dict[str, Any]) -> dict[str, str]:
    """What `predict` says, as text: what the page shows of a machine."""
    ledger = asked(found, known, plan)
    figures = {**ledger.sums, "total": ledger.total, "capacity": ledger.capacity, "headroom": ledger.headroom}
    return {
        **{name: str(size) for name, size in figures.items()},
        "max_users": str(ledger.max_users),
        "fits": str(ledger.fits).lower(),
    }


def asked(found: list[explore.Choice], known: list[machines.Machine], plan: dict[str, Any]) -> Ledger:
    """What `predict` says."""
    choice = found[plan["model"]]
    named = plan["format"] == explore.published(choice)
    engine = Settings(plan["engine"], plan["batched"], plan["attention"], plan["logits"], plan["share"])
    return predict(
        summed(
            id="page",
            model=choice.model,
            format=choice.format if named else formats.get(plan["format"]),
            kv_cache_dtype=plan["kv"],
            ctx=plan["ctx"],
            users=plan["users"],
            machine=known[plan["machine"]],
            engine=engine,
            convention=plan["convention"],
        )
    )
