"""vLLM's KV cache pool, to the block: groups, blocks, tokens, concurrency, users, and whether vLLM starts.

The details of what `membudget plan` answers for vLLM. The pool's bytes are what --machine has left, or --available-kv.
Exit code 0: vLLM would start; 1: it would refuse.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from membudget import machines
from membudget.budgets.settings import Settings
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import (
    InputError,
    available_now,
    choose_cache,
    choose_format,
    count,
    find_model,
    model_argument,
    size,
)
from membudget.cli.commands.engine_options import add_engine_options, engine_settings
from membudget.engines import share
from membudget.engines.base import Load, Refusal
from membudget.engines.vllm.engine import VllmPlan
from membudget.engines.vllm.options import DECLARED
from membudget.engines.vllm.pool.plan import plan_pool
from membudget.engines.vllm.pool.result import Pool, PoolRequest
from membudget.engines.vllm.pool.text import lines as pool_lines
from membudget.engines.vllm.profile.estimate import Estimate
from membudget.engines.vllm.settings import vllm_settings
from membudget.host.detect import find_machine
from membudget.machines import Machine
from membudget.model import Model
from membudget.planning.words import claim_text
from membudget.sources.locate import Located
from membudget.text.terminal import Terminal, plain
from membudget.units import BYTE_UNITS, gib

#: max_model_len that lets vLLM fit the longest request.
_FITTED = ("-1", "auto")


def options(parser: Declares) -> None:
    """The arguments of `membudget pool`."""
    add = parser.add_argument
    model_argument(parser)
    add("--available-kv", metavar="SIZE", help="bytes for the pool, of the smallest rank: 60GiB")
    add("--machine", metavar="NAME", help="what it has left for the pool, or several: '2x h100-80gb'")
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")
    add("--format", metavar="NAME", help="of the weights, with --machine; default: its own")
    add("--kv-cache-dtype", metavar="DTYPE", default="auto", help="vLLM's name; default: auto")
    add("--prefix-caching", action="store_true", help="as --enable-prefix-caching")
    add("--no-prefix-caching", action="store_true", help="as --no-enable-prefix-caching")
    add("--speculative-tokens", metavar="N", help="draft tokens a step; with --draft-layers, for --speculative-config")
    add("--draft-layers", metavar="N", help="attention layers of the drafter; default: 0")
    add("--platform", choices=("cuda", "cpu"), help="default: the machine's, else cuda")
    add_engine_options(parser, (DECLARED.name,))


@dataclass(frozen=True)
class Details:
    """What is shown."""

    pool: Pool
    refusals: tuple[Refusal, ...]
    #: None where no machine is named.
    users: int | None
    binds: str
    #: requested, then what is subtracted from it; empty where no machine is named.
    parts: tuple[Estimate, ...]

    @property
    def starts(self) -> bool:
        """Whether vLLM starts."""
        return self.pool.starts and not self.refusals


def run(args: Arguments) -> Result:
    """Carve it."""
    if args.available_kv and args.machine:
        raise InputError("--available-kv and --machine: one of the two is enough")
    fitted = args.max_model_len in _FITTED
    if fitted:
        args.max_model_len = None
    for name, caching in (("--prefix-caching", args.prefix_caching), ("--no-prefix-caching", args.no_prefix_caching)):
        if caching and args.enable_prefix_caching is None:
            args.enable_prefix_caching = name == "--prefix-caching"
    settings = engine_settings(args, DECLARED.name)
    model, found = find_model(args)
    notes: list[str] = []
    if args.machine is not None:
        details, notes = _of_machine(args, settings, model, found, fitted)
    else:
        details = _of_bytes(args, settings, model, fitted)
    notes += model.notes
    pool = details.pool
    document = {"model": model.name, "source": found.source, **pool.as_json()}
    refused = [refusal.as_json() for refusal in details.refusals]
    document |= {"starts": details.starts, "refusals": refused, "users": details.users, "binds": details.binds}
    document["identity"] = {"parts": [_part(part) for part in details.parts]} if details.parts else None
    document["notes"] = notes
    return Result(0 if details.starts else 1, document, lambda: _text(model, details, notes))


def _part(part: Estimate) -> dict[str, Any]:
    return {"name": part.name, "bytes": part.bytes, "low": part.low, "high": part.high, "why": part.why}


def _of_machine(
    args: Arguments, settings: Settings, model: Model, found: Located, fitted: bool
) -> tuple[Details, list[str]]:
    """The details of what `plan` answers for this machine."""
    many, name = machines.counted(args.machine)
    machine = find_machine(name, (args.machines,) if args.machines else ())
    if args.platform:
        machine = replace(machine, platform=args.platform)
    tp, pp = (settings.options.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    tp, pp = tp or max(many // (pp or 1), 1), pp or 1
    if many not in (1, tp * pp):
        raise InputError(f"--machine: {many} devices, and TP {tp} x PP {pp} are {tp * pp}")
    if args.speculative_tokens or args.draft_layers:
        raise InputError("--speculative-tokens, --draft-layers: with --machine write --speculative-config JSON")
    form = choose_format(args.format, model, found)
    cache = choose_cache(args.kv_cache_dtype, form, model, found, DECLARED.name)
    asked = replace(settings, kv_cache_dtype=cache, tensor_parallel=tp, pipeline_parallel=pp)
    plan = VllmPlan(model, form, machine, asked)
    ctx = asked.options.get("max_model_len") or model.longest.tokens
    if fitted:
        ctx = plan.starts.start(ctx).pool.max_model_len or ctx
    answer = plan.answer(Load(ctx, 1))
    start = plan.starts.start(ctx)
    notes = [note.text for note in answer.notes]
    if answer.claimed is not None and share.takes_reserve(machine, asked):
        notes.append(_too_large_a_share(machine, asked))
    notes += available_now(machine, machine.os_reserve)
    requested = (start.profiled.part("requested"), *start.parts[start.least])
    served = plan.serving.served(ctx)
    details = Details(start.pool, answer.starts, answer.users, served.binds.value, requested)
    return details, notes


def _of_bytes(args: Arguments, settings: Settings, model: Model, fitted: bool) -> Details:
    """A pool of so many bytes, on a device of which nothing else is known."""
    nowhere = Machine("", 0, 0, False, 0, platform=args.platform or "cuda")
    given = settings.options
    if args.available_kv is None and "kv_cache_memory_bytes" not in given:
        raise InputError("the pool has no size: pass --machine NAME, --available-kv 60GiB or --kv-cache-memory-bytes")
    available = None if args.available_kv is None else _printed("--available-kv", args.available_kv)
    sizes = {f"{kind}_parallel": given.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline")}
    asked = vllm_settings(replace(settings, kv_cache_dtype=args.kv_cache_dtype, **sizes), model, None, nowhere)
    length = -1 if fitted else asked.max_model_len
    request: PoolRequest = asked.request(model, nowhere, available, length, asked.max_num_batched_tokens)
    request = request._replace(device_memory=None)
    if args.speculative_tokens or args.draft_layers:
        request = request._replace(
            speculative_tokens=count("--speculative-tokens", args.speculative_tokens or "0", 1024, 0),
            draft_layers=count("--draft-layers", args.draft_layers or "0", 1024, 0),
        )
    pool = plan_pool(request)
    refusals = (Refusal("kv_cache", pool.error),) if pool.error else ()
    return Details(pool, refusals, None, "", ())


def _too_large_a_share(machine: Machine, settings: Settings) -> str:
    """That vLLM would start and take what the operating system is left, and the share that leaves it."""
    most = share.largest(machine)
    leaves = "no share leaves it" if most is None else f"{most} leaves it"
    return f"{machine.name}: {claim_text(machine, settings)}; {leaves} (`membudget doctor` says what runs there needs)"


def _printed(option: str, text: str) -> int:
    """A size as a log prints it: 5.98GiB is not a whole number of bytes, and is rounded down."""
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})\s*([A-Za-z]+)", text.strip())
    if found is None or found[3] not in BYTE_UNITS:
        return size(option, text)
    rounded = int(found[1] + found[2]) * BYTE_UNITS[found[3]] // 10 ** len(found[2])
    return size(option, str(rounded))


def _text(model: Model, details: Details, notes: list[str]) -> str:
    terminal = Terminal.of()
    pool = details.pool
    lines = [terminal.paint(plain(model.name), "bold"), *pool_lines(pool, details.users)]
    for refusal in details.refusals:
        if refusal.text != pool.error:
            lines += terminal.wrap(f"does not start: {refusal.text}")
    if details.parts:
        wide = max(len(part.name) for part in details.parts)
        lines.append("")
        for place, part in enumerate(details.parts):
            lines.append(f"{part.name:<{wide}} {gib(part.bytes if place == 0 else -part.bytes):>14}   {part.why}")
        lines.append(f"{'left for the KV cache':<{wide}} {gib(pool.available):>14}")
    for note in notes:
        lines += ["", *terminal.wrap(note)]
    return "\n".join(lines)
