"""A budget: one model, in one format, for so many users at one context, on one machine.

The record only; `membudget.budgets.file` reads it from YAML and the command line
makes it from options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from membudget.budgets.settings import Settings, kind_of, parallel_sizes
from membudget.data.defaults import DEFAULT_OVERHEAD
from membudget.errors import MembudgetError
from membudget.formats import Format
from membudget.machines import Machine
from membudget.model import Model


@dataclass(frozen=True)
class Budget:
    """What is asked of `membudget.planning.ledger.predict`.  Sizes in bytes, ctx in tokens."""

    #: Unique in a run: the file's stem and what its lists expanded to.
    id: str
    model: Model
    format: Format
    #: As vLLM names it; ``auto`` is resolved by `membudget.formats.kv`.
    kv_cache_dtype: str
    #: Tokens of each user.
    ctx: int
    #: Requests of `ctx` tokens that shall run at once.
    users: int
    machine: Machine
    engine: Settings = field(default_factory=Settings)
    #: Bytes by part (cuda_context, allocator, cuda_graphs, non_torch), without the operating system.
    overhead: dict[str, int] = field(default_factory=lambda: DEFAULT_OVERHEAD)
    #: Bytes for the operating system; None for the machine's own.
    os_reserve: int | None = None
    #: Which capacity counts: ``reported`` or ``nominal``.
    convention: str = "reported"
    #: Exact truths that a person typed.
    expect: dict[str, Any] = field(default_factory=dict)
    #: Tolerances by measured line.
    measure: dict[str, Any] = field(default_factory=dict)
    #: Breakages to provoke.
    breaks: tuple[dict[str, Any], ...] = ()
    #: The most that a measurement may take, in bytes.
    ceiling: int | None = None
    #: The file and the line that it came from; empty where there is none.
    file: str = ""
    line: int = 0
    #: The line of each field, for messages.
    where: dict[str, int] = field(default_factory=dict)
    #: How many of `machine`: tensor_parallel x pipeline_parallel, times replicas (`parallel_sizes`).
    machines: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def machine_name(self) -> str:
        """``dgx-spark``, or ``2x dgx-spark``."""
        return self.machine.name if self.machines == 1 else f"{self.machines}x {self.machine.name}"

    @property
    def capacity(self) -> int:
        """One machine's memory by the chosen convention, in bytes."""
        return self.machine.capacity(self.convention)

    @property
    def os_bytes(self) -> int:
        """Bytes that are left to the operating system."""
        return self.machine.os_reserve if self.os_reserve is None else self.os_reserve

    @property
    def settings(self) -> Settings:
        """The engine's settings with what the budget says beside them: what an engine is asked with."""
        return replace(
            self.engine,
            kv_cache_dtype=self.kv_cache_dtype,
            overhead=self.overhead,
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
        )

    @property
    def device(self) -> Machine:
        """One machine as the budget counts it: its capacity by the convention, the budget's own os_reserve."""
        machine = self.machine
        if self.convention == "reported" and self.os_reserve is None:
            return machine
        nominal = self.convention != "reported"
        return replace(
            machine,
            memory=self.capacity,
            os_reserve=self.os_bytes,
            cuda_total=self.capacity if nominal else machine.cuda_total,
            cuda_total_low=None if nominal else machine.cuda_total_low,
            cuda_total_high=None if nominal else machine.cuda_total_high,
        )


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
    engine: Settings,
    machines: int = 1,
    convention: str = "reported",
) -> Budget:
    """A budget that is asked for without a file.

    Raises `MembudgetError` as `parallel_sizes` does, and for weights that the engine cannot hold as they are.
    """
    if why := kind_of(engine.name).refuses(form):
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


__all__ = ["Budget", "unfiled", "unfiled_id"]
