"""The same plan from Python: `membudget.plan`."""

from __future__ import annotations

from membudget.budgets.budget import unfiled
from membudget.budgets.settings import default_engine, served_dtype, settings_of
from membudget.cli.commands.common import InputError, choose_cache, choose_format
from membudget.data.defaults import MAX_CTX, MAX_USERS
from membudget.host.detect import find_machine
from membudget.machines import counted
from membudget.planning.ledger import Ledger, predict


def plan(
    model: str,
    machine: str,
    *,
    ctx: int,
    users: int = 1,
    format: str | None = None,
    kv_cache_dtype: str = "auto",
    engine: str | None = None,
    offline: bool | None = None,
) -> Ledger:
    """Predict what `users` sequences of `ctx` tokens take on a machine; all sizes of the answer are in bytes.

    model: a hub id, folder, config.json, .gguf or .safetensors file.
    machine: as `membudget machines` lists them, or several: ``2x dgx-spark``.
    format: as `membudget formats` lists them; None for the one that the files or their config declare.
    kv_cache_dtype: as vLLM spells it.  engine: vllm, transformers, llama_cpp or arithmetic; None
    for vllm, of GGUF weights and of a Mac llama_cpp.
    offline: never ask the hub; None asks unless HF_HUB_OFFLINE is set.
    Raises `ValueError` that says what was wrong and what is allowed, `membudget.ConfigError` (one of them) for a
    model that is not found or not known.
    """
    from membudget.model import build
    from membudget.sources.locate import locate
    from membudget.text.sanitize import shown

    for name, value, most in (("ctx", ctx, MAX_CTX), ("users", users, MAX_USERS)):
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(f"{name} is {value!r}; allowed is a whole number from 1 to {most:,}")
    many, name = counted(machine)
    box = find_machine(name)
    found = locate(model, offline=offline)
    if found.config is None:
        raise InputError(f"{shown(model)}: only weights lie there; put the model's config.json beside them")
    built = build(found.config, found.repo or model)
    form = choose_format(format, built, found)
    settings = settings_of(engine or default_engine(form, box).name)
    cache = choose_cache(kv_cache_dtype, form, built, found, settings.name, served_dtype(settings))
    return predict(unfiled(built, form, cache, ctx, users, box, settings, many))
