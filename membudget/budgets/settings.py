"""How a model is run: the settings of an engine, and what every engine declares of itself to budgets.

An engine is a folder of `membudget.engines`.  Its `options.py` has one `DECLARED`, a `Declared`: the name, the fields
of `engine: {NAME: ...}` in a budget, what it reads.  `declared()` finds them all; nothing else lists engines.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from membudget.data.defaults import DEFAULT_BATCHED_TOKENS, DEFAULT_OVERHEAD
from membudget.errors import MembudgetError
from membudget.formats import Format
from membudget.machines import Machine
from membudget.text.sanitize import shown

if TYPE_CHECKING:  # fields read YAML, which an import of this does not
    from membudget.budgets.fields import Fields

#: The engine of a budget that names none.
DEFAULT_ENGINE = "vllm"


class UnknownEngine(MembudgetError):
    """A name that no engine has: says what is near and what is known."""


@dataclass(frozen=True)
class Settings:
    """How the model is run, as far as it moves bytes; the last four are the budget's, see `Budget.settings`."""

    #: Of the engine.
    name: str = DEFAULT_ENGINE
    #: The prefill chunk, in tokens; None for the engine's default.
    max_num_batched_tokens: int | None = None
    #: ``sdpa`` or ``eager``.
    attention: str = "sdpa"
    #: Of which positions logits are made: ``last`` or ``every``.
    logits: str = "last"
    #: The share of the memory that the engine may claim, None for its default.
    gpu_memory_utilization: float | None = None
    #: Everything else, by the engine's own names.
    options: Mapping[str, Any] = field(default_factory=dict)
    kv_cache_dtype: str = "auto"
    #: Bytes by part.
    overhead: Mapping[str, int] = field(default_factory=lambda: DEFAULT_OVERHEAD)
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def step_tokens(self) -> int:
        """Tokens of one prefill step, as given or `DEFAULT_BATCHED_TOKENS`."""
        return self.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS


@dataclass(frozen=True)
class Smaller:
    """A weight format that is suggested where a larger one does not fit."""

    #: As `membudget formats` lists it.
    format: str
    #: The engine that reads it, where it is another one: it must fit there too.
    engine: str = ""


@dataclass(frozen=True)
class Declared:
    """What an engine declares of itself; a budget and the command line need no more to be read."""

    #: In budgets, records and ``--engine``.
    name: str
    #: As its users write it.
    title: str
    #: One sentence for the schema and `--help`.
    about: str
    #: Its options in a budget's `engine: {NAME: ...}`.
    fields: Fields
    #: Its place in lists of engines.
    order: int
    #: Other spellings that the command line takes.
    aliases: tuple[str, ...] = ()
    #: Tokens of one prefill step where none are given; None where that depends on the version and the device.
    batched_tokens: int | None = DEFAULT_BATCHED_TOKENS
    #: What it calls that step.
    step: str = "max_num_batched_tokens"
    #: The smallest step that is suggested; None where the step cannot be chosen.
    small_step: int | None = None
    #: Whose KV cache dtypes it has (`membudget.formats.kv`), None where a cache takes any.
    kv: str | None = None
    #: Its 8-bit KV cache dtype, "" for none.
    small_cache: str = ""
    #: Weight formats to suggest, the least compressed first.
    smaller: tuple[Smaller, ...] = ()
    #: Those below 4 bits, where nothing else helps.
    smallest: tuple[Smaller, ...] = ()
    #: Whether it is planned on several machines.
    several: bool = False
    #: Platforms of `membudget.machines.Machine` that it runs on.
    platforms: tuple[str, ...] = ("cuda", "rocm", "cpu")
    #: Whether GGUF files are its own.
    gguf: bool = False
    #: Whether it claims a share of the memory (gpu_memory_utilization) when it starts.
    claims: bool = False
    #: Whether several machines are devices of one host that share the layers, in place of parallel sizes.
    stages: bool = False
    #: Whether each user has cells of its own from the start, in place of tokens.
    cells: bool = False
    #: Its options that say the dtype of keys and of values, before `kv_cache_dtype`.
    cache_options: tuple[str, ...] = ()
    #: Tokens of a user by the engine's own options, and the options that are left; from them, the users and the
    #: model's own length.
    context: Callable[[Mapping[str, Any], int, int | None], tuple[int | None, Mapping[str, Any]]] = (
        lambda options, users, most: (None, options)
    )
    #: Its option that says what the model runs in, "" where there is none.
    dtype_option: str = ""
    #: Why it cannot hold weights as they are stored, None where it can.
    refuses: Callable[[Format], str | None] = lambda form: None


@functools.cache
def declared() -> dict[str, Declared]:
    """Every engine by name, in the order of lists: one for each folder of `membudget.engines` with an `options`."""
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "engines")
    names = [found.name for found in pkgutil.iter_modules([folder]) if found.ispkg]
    every = [importlib.import_module(f"membudget.engines.{name}.options").DECLARED for name in names]
    return {one.name: one for one in sorted(every, key=lambda one: (one.order, one.name))}


def served_dtype(settings: Settings) -> str | None:
    """What the engine is told to run the model in, None where it is not told."""
    found = settings.options.get(kind_of(settings.name).dtype_option)
    return None if found is None else str(found)


def kind_of(name: str) -> Declared:
    """The engine of that name or alias.  Raises `UnknownEngine`."""
    known = declared()
    if name in known:
        return known[name]
    for one in known.values():
        if name.lower() in (one.name, one.title.lower(), *one.aliases):
            return one
    near = get_close_matches(name.lower()[:80], known, 2, 0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownEngine(f"engine is {shown(name)}; allowed are {', '.join(known)}{hint}")


def settings_of(name: str, batched_tokens: int | None = None, **more: Any) -> Settings:
    """The settings of an engine, with its own prefill step where none is given.  Raises `UnknownEngine`."""
    kind = kind_of(name)
    return Settings(kind.name, kind.batched_tokens if batched_tokens is None else batched_tokens, **more)


def default_engine(form: Format, machine: Machine) -> Declared:
    """The engine of a plan that names none: of GGUF weights and of a Mac the one that runs there."""
    kind = declared()[DEFAULT_ENGINE]
    return gguf_engine() if is_gguf(form) or machine.platform not in kind.platforms else kind


def gguf_engine() -> Declared:
    """The engine that reads GGUF files."""
    return next(one for one in declared().values() if one.gguf)


def is_gguf(form: Format) -> bool:
    """Whether weights are a GGUF mix, or lie in a GGUF file."""
    kind = form.key[0] if isinstance(form.key, tuple) else ""
    return kind == "gguf" or getattr(getattr(form, "checkpoint", None), "kind", "") == "gguf"


def parallel_sizes(machines: int, settings: Settings) -> tuple[int, int]:
    """(tensor, pipeline) parallel sizes of a replica on so many machines; the one not given makes up their product.

    Neither given: all machines are tensor parallel; of an engine that shares layers all are stages.
    Raises `MembudgetError` for an engine without such sizes, and for a product that is not the number of machines.
    """
    if kind_of(settings.name).stages:
        return 1, machines
    replicas = settings.options.get("data_parallel_size", 1)
    if machines % replicas:
        raise MembudgetError(
            f"data_parallel_size {replicas:,} does not divide the {machines:,} that machine names; allowed: one rank "
            f"for each machine, as `{replicas}x NAME`"
        )
    machines //= replicas
    tp, pp = (settings.options.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    if machines > 1 and not kind_of(settings.name).several:
        several = " or ".join(f"`engine: {{{one.name}: ...}}`" for one in declared().values() if one.several)
        raise MembudgetError(f"{machines:,} machines need {several}; {settings.name} is planned for one")
    if tp is None and pp is None:
        return machines, 1
    if tp and pp:
        if tp * pp == machines:
            return tp, pp
        ways = [f"pipeline_parallel_size {machines // tp:,} with tensor_parallel_size {tp:,}"] * (machines % tp == 0)
        ways += [f"tensor_parallel_size {machines // pp:,} with pipeline_parallel_size {pp:,}"] * (machines % pp == 0)
        raise MembudgetError(
            f"tensor_parallel_size {tp:,} x pipeline_parallel_size {pp:,} make {tp * pp:,} ranks, and machine names "
            f"{machines:,}; allowed: one rank for each machine, as `{tp * pp}x NAME`, "
            f"or sizes whose product is {machines:,}{': ' * bool(ways)}{', or '.join(ways)}"
        )
    given, other, size = ("tensor", "pipeline", tp) if tp else ("pipeline", "tensor", pp or 1)
    if machines % size:
        sizes = [part for part in range(1, machines + 1) if machines % part == 0]
        raise MembudgetError(
            f"{given}_parallel_size {size:,} does not divide the {machines:,} that machine names; allowed: one rank "
            f"for each machine, as `{size}x NAME`, or {given}_parallel_size {', '.join(map(str, sizes))} "
            f"({other}_parallel_size is then {', '.join(str(machines // part) for part in sizes)})"
        )
    return (size, machines // size) if tp else (machines // size, size)


__all__ = [
    "DEFAULT_ENGINE",
    "Declared",
    "Settings",
    "Smaller",
    "UnknownEngine",
    "declared",
    "default_engine",
    "gguf_engine",
    "is_gguf",
    "kind_of",
    "parallel_sizes",
    "settings_of",
]
