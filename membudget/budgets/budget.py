"""A budget: one model, in one format, for so many users at one context, on one machine.

The record only; `membudget.budgets.file` reads it from YAML and the command line
makes it from options.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from membudget.errors import MembudgetError
from membudget.formats import Format
from membudget.machines import Machine
from membudget.model import Model
from membudget.units import GIB, MIB

#: Tokens that one prefill step takes at most, unless the budget says otherwise.
DEFAULT_BATCHED_TOKENS = 8192


class EngineKind(NamedTuple):
    """What an engine is by itself.

    batched_tokens: of one prefill step unless told otherwise.  kv: its name in `membudget.formats.kv`, None where
    a cache takes any dtype.  small_cache: the 8-bit KV cache it has, "" for none.
    smaller: weight formats to suggest, from the least compressed on; GGUF files are llama.cpp's.
    smallest: those below 4 bits, where nothing else helps.
    """

    batched_tokens: int
    kv: str | None
    small_cache: str
    smaller: tuple[str, ...]
    smallest: tuple[str, ...]


_SMALLEST_GGUF = ("q3_k_m", "q2_k", "iq2_xxs", "iq1_s")
#: Those among the suggested formats that llama.cpp reads and the other engines do not.
GGUF = ("q8_0", "q4_k_m", *_SMALLEST_GGUF)
ENGINES = {
    "vllm": EngineKind(DEFAULT_BATCHED_TOKENS, "vllm", "fp8", ("fp8", "awq", "q4_k_m"), _SMALLEST_GGUF),
    # a plain forward takes every prompt at once, whatever the step
    "transformers": EngineKind(DEFAULT_BATCHED_TOKENS, None, "", ("fp8", "awq"), ()),
    "llama_cpp": EngineKind(512, "llama.cpp", "q8_0", ("q8_0", "q4_k_m"), _SMALLEST_GGUF),
}
#: Overhead beside the operating system until it is measured: 1.5 GiB in all.
DEFAULT_OVERHEAD = {"cuda_context": 512 * MIB, "allocator": 512 * MIB, "cuda_graphs": 512 * MIB}


class Engine(NamedTuple):
    """How the model is run, as far as it moves bytes.

    name: vllm, transformers or llama_cpp.
    max_num_batched_tokens: the prefill chunk.  attention: sdpa or eager.
    logits: last or every.  gpu_memory_utilization: the part of the machine's memory
    that the engine may claim (vLLM), None for all.  options: everything else, by its own name.
    """

    name: str = "vllm"
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    attention: str = "sdpa"
    logits: str = "last"
    gpu_memory_utilization: float | None = None
    options: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default, never written to)


class Budget(NamedTuple):
    """What is asked of `membudget.planning.ledger.predict`.  Sizes in bytes, ctx in tokens.

    overhead: parts by name (cuda_context, allocator, cuda_graphs, non_torch), without the OS.
    os_reserve: None for the machine's own.  convention: reported or nominal capacity.
    expect: exact truths a person typed.  measure: tolerances by line.  breaks: breakages to provoke.
    where: file:line of each field, for messages; empty when it did not come from a file.
    machines: how many of them; tensor_parallel x pipeline_parallel are as many (`parallel_sizes`).
    """

    id: str
    model: Model
    format: Format
    kv_cache_dtype: str
    ctx: int
    users: int
    machine: Machine
    engine: Engine = Engine()
    overhead: dict[str, int] = DEFAULT_OVERHEAD
    os_reserve: int | None = None
    convention: str = "reported"
    expect: dict[str, Any] = {}  # noqa: RUF012
    measure: dict[str, Any] = {}  # noqa: RUF012
    breaks: tuple[dict[str, Any], ...] = ()
    ceiling: int | None = None
    file: str = ""
    line: int = 0
    where: dict[str, int] = {}  # noqa: RUF012
    machines: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def machine_name(self) -> str:
        """``dgx-spark``, or ``2x dgx-spark``."""
        return self.machine.name if self.machines == 1 else f"{self.machines}x {self.machine.name}"

    @property
    def capacity(self) -> int:
        """One machine's memory by the chosen convention."""
        return self.machine.capacity(self.convention)

    @property
    def os_bytes(self) -> int:
        """What is left to the operating system."""
        return self.machine.os_reserve if self.os_reserve is None else self.os_reserve


def engine_of(name: str, batched_tokens: int | None = None, **more: Any) -> Engine:
    """An engine with its own prefill step where none is given.  `KeyError` for one that is not in `ENGINES`."""
    kind = ENGINES[name]
    return Engine(name, kind.batched_tokens if batched_tokens is None else batched_tokens, **more)


def is_gguf(form: Format) -> bool:
    """Whether weights are a GGUF mix, or lie in a GGUF file."""
    kind = form.key[0] if isinstance(form.key, tuple) else ""
    return kind == "gguf" or getattr(getattr(form, "checkpoint", None), "kind", "") == "gguf"


def not_read(engine: str, form: Format) -> str | None:
    """Why an engine cannot hold weights as they are stored; None where it can, or could in an older version."""
    if engine == "transformers" and is_gguf(form):
        return f"{form.name} is GGUF, which transformers unpacks into 16 bits when it loads: plan it as bf16"
    return None


def unfiled_id(model: str, format: str, machine: str, machines: int) -> str:
    """What a plan without a file is called: ``Qwen3-8B-bf16.dgx-spark``, ``Qwen3-8B-bf16.2x-dgx-spark``."""
    return f"{model}-{format}.{machine if machines == 1 else f'{machines}x-{machine}'}"


def unfiled(
    model: Model,
    form: Format,
    kv_cache_dtype: str,
    ctx: int,
    users: int,
    machine: Machine,
    engine: Engine,
    machines: int = 1,
    convention: str = "reported",
) -> Budget:
    """A budget that is asked for without a file.  Raises `ValueError` as `parallel_sizes` does, and by `not_read`."""
    if why := not_read(engine.name, form):
        raise MembudgetError(why)
    tensor_parallel, pipeline_parallel = parallel_sizes(machines, engine)
    return Budget(
        id=unfiled_id(model.name, form.name, machine.name, machines),
        model=model,
        format=form,
        kv_cache_dtype=kv_cache_dtype,
        ctx=ctx,
        users=users,
        machine=machine,
        engine=engine,
        convention=convention,
        machines=machines,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
    )


def parallel_sizes(machines: int, engine: Engine) -> tuple[int, int]:
    """(tensor, pipeline) parallel sizes on so many machines; the one that is not given makes up their product.

    Neither given: all machines are tensor parallel.
    Raises `ValueError` for an engine without such sizes, and for a product that is not the number of machines.
    """
    tp, pp = (engine.options.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    if machines > 1 and engine.name != "vllm":
        raise MembudgetError(f"{machines:,} machines need `engine: {{vllm: ...}}`; {engine.name} is planned for one")
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
    "DEFAULT_BATCHED_TOKENS",
    "DEFAULT_OVERHEAD",
    "ENGINES",
    "GGUF",
    "GIB",
    "Budget",
    "Engine",
    "engine_of",
    "is_gguf",
    "not_read",
    "parallel_sizes",
    "unfiled",
    "unfiled_id",
]
