"""vLLM's KV cache pool, to the block: groups, blocks, tokens, concurrency, and whether vLLM starts.

The pool's bytes are --available-kv, or what --machine has left at --gpu-memory-utilization.
Exit code 0: vLLM would start; 1: it would refuse.
"""

from __future__ import annotations

from membudget.budgets.budget import Budget
from membudget.budgets.settings import settings_of
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import (
    InputError,
    available_now,
    choose_cache,
    choose_format,
    context,
    count,
    find_model,
    model_argument,
    share,
    size,
)
from membudget.data.defaults import DEFAULT_BATCHED_TOKENS, MAX_CTX
from membudget.engines.vllm.pool import text as pool_text
from membudget.engines.vllm.pool.derive import batched_tokens
from membudget.engines.vllm.pool.plan import Pool, PoolRequest, plan_pool
from membudget.engines.vllm.profile.identity import Figures, Identity, identity
from membudget.engines.vllm.versions import DEFAULT as DEFAULT_VERSION
from membudget.engines.vllm.versions import rules
from membudget.errors import MembudgetError
from membudget.formats import Format
from membudget.host.detect import find_machine
from membudget.machines import Machine
from membudget.model import Model
from membudget.planning.capacity import share_that_leaves, takes_the_systems
from membudget.planning.ledger import predict
from membudget.planning.words import share_text


def options(parser: Declares) -> None:
    """The arguments of `membudget pool`."""
    add = parser.add_argument
    model_argument(parser)
    add("--available-kv", metavar="SIZE", help="bytes for the pool, of the smallest rank: 60GiB")
    add("--machine", metavar="NAME", help="what it has left for the pool; not --available-kv")
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")
    add("--gpu-memory-utilization", metavar="X", help="default: the version's own")
    add("--format", metavar="NAME", help="of the weights, with --machine; default: its own")
    add("--kv-cache-memory-bytes", metavar="SIZE", help="vLLM's option: fixes the pool")
    add("--num-gpu-blocks-override", metavar="N", help="vLLM's option: fixes the number of blocks")
    add("--max-model-len", metavar="N", help="tokens a request; default: the model's own")
    add("--max-num-batched-tokens", metavar="N", help="tokens a step; default: as this version chooses")
    add("--kv-cache-dtype", metavar="DTYPE", default="auto", help="vLLM's name; default: auto")
    add("--dtype", metavar="DTYPE", help="vLLM's option; default: the config's own")
    add("--tp", "--tensor-parallel-size", dest="tp", metavar="N", default="1", help="default: 1")
    add("--pp", "--pipeline-parallel-size", dest="pp", metavar="N", default="1", help="default: 1")
    add("--dcp", "--decode-context-parallel-size", dest="dcp", metavar="N", default="1", help="default: 1")
    add("--block-size", metavar="N", help="vLLM's option")
    add("--prefix-caching", action="store_true", help="prefix caching on, where it is off by default")
    add("--no-prefix-caching", action="store_true", help="prefix caching off")
    add("--speculative-tokens", metavar="N", default="0", help="draft tokens a step; default: 0")
    add("--draft-layers", metavar="N", default="0", help="attention layers of the drafter; default: 0")
    add("--vllm-version", metavar="X.Y.Z", default=DEFAULT_VERSION, help=f"default: {DEFAULT_VERSION}")
    add("--platform", choices=("cuda", "cpu"), default="cuda", help="default: cuda")


def run(args: Arguments) -> Result:
    """Carve it."""
    tp, pp, dcp = (count(f"--{name}", getattr(args, name), 4096) for name in ("tp", "pp", "dcp"))
    if tp % dcp:
        raise InputError(f"--dcp: {dcp} does not divide --tp {tp}: vLLM takes a divisor of the tensor-parallel size")
    chunk = args.max_num_batched_tokens
    batched = None if chunk is None else context("--max-num-batched-tokens", chunk, MAX_CTX)
    if args.available_kv and args.machine:
        raise InputError("give --available-kv or --machine, not both")
    fixed = None if args.kv_cache_memory_bytes is None else size("--kv-cache-memory-bytes", args.kv_cache_memory_bytes)
    model, found = find_model(args)
    rest: Identity | None = None
    notes: list[str] = []
    machine = None if args.machine is None else find_machine(args.machine, (args.machines,) if args.machines else ())
    memory, title = (None, "") if machine is None else (machine.cuda_total or machine.memory, machine.title)
    if args.available_kv:
        available: int | None = _printed("--available-kv", args.available_kv)
    elif machine is not None:
        if tp * pp > 1:
            raise InputError("--machine: with --tp or --pp give --available-kv: membudget knows one device's rest only")
        step, _ = batched_tokens(batched, args.platform, memory, title, 1)
        form = choose_format(args.format, model, found)
        budget = _budget(args, model, form, machine, step or DEFAULT_BATCHED_TOKENS)
        rest = _left(budget, args.vllm_version)
        if fixed is None and args.num_gpu_blocks_override is None and takes_the_systems(budget):
            notes.append(_too_large_a_share(budget))
        notes += available_now(machine, machine.os_reserve)
        available = rest.predicted
    elif fixed is None:
        raise InputError(
            "the pool has no size: give --available-kv 60GiB, or --machine NAME, or --kv-cache-memory-bytes"
        )
    else:
        available = None
    pool = plan_pool(
        PoolRequest(
            model,
            available,
            max_model_len=None if args.max_model_len is None else _length(args.max_model_len),
            max_num_batched_tokens=batched,
            kv_cache_dtype=args.kv_cache_dtype,
            dtype=args.dtype,
            tp=tp,
            pp=pp,
            dcp=dcp,
            block_size=None if args.block_size is None else count("--block-size", args.block_size, 2**20),
            prefix_caching=False if args.no_prefix_caching else True if args.prefix_caching else None,
            kv_cache_memory_bytes=fixed,
            num_gpu_blocks_override=None
            if args.num_gpu_blocks_override is None
            else count("--num-gpu-blocks-override", args.num_gpu_blocks_override, 2**40),
            speculative_tokens=count("--speculative-tokens", args.speculative_tokens, 1024, 0),
            draft_layers=count("--draft-layers", args.draft_layers, 1024, 0),
            version=args.vllm_version,
            platform=args.platform,
            device_memory=memory,
            device_name=title,
        )
    )
    document = {"model": model.name, "source": found.source, **pool.as_json()}
    document["identity"] = rest.as_json() if rest else None
    document["notes"] = notes
    return Result(0 if pool.starts else 1, document, lambda: _text(model, pool, rest, notes))


class NoPool(MembudgetError):
    """vLLM would not start: says why, and what would help."""

    exit_code = 1  # of the command line: no


def _budget(args: Arguments, model: Model, form: Format, machine: Machine, batched: int) -> Budget:
    """One user's one token: what is beside the pool does not depend on them."""
    given = args.gpu_memory_utilization
    default = rules(args.vllm_version).utilization / 100
    part = default if given is None else share("--gpu-memory-utilization", given)
    engine = settings_of("arithmetic", batched, gpu_memory_utilization=part)
    return Budget("pool", model, form, choose_cache("auto", form, model), 1, 1, machine, engine)


def _too_large_a_share(budget: Budget) -> str:
    """That vLLM would start and take what the operating system is left, and the share that leaves it."""
    most = share_that_leaves(budget)
    leaves = "no share leaves it" if most is None else f"{most} leaves it"
    return f"{budget.machine.name}: {share_text(budget)}; {leaves} (`membudget doctor` says what runs there needs)"


def _left(budget: Budget, version: str) -> Identity:
    """What one device has for the pool: utilization x total, less weights, activations and overhead."""
    ledger, machine = predict(budget), budget.machine
    part, batched = budget.engine.gpu_memory_utilization, budget.engine.max_num_batched_tokens
    assert part is not None
    graphs = budget.overhead["cuda_graphs"]
    found = identity(
        Figures(
            total=machine.cuda_total or machine.memory,
            utilization=part,
            weights=ledger.weights,
            activation=ledger.activations,
            non_torch=sum(budget.overhead.values()) - graphs,
            graph_estimate=graphs,
        ),
        version,
    )
    assumed = {"weights": budget.format.name, "activation": f"{batched:,} tokens a step"}
    parts = tuple(
        item._replace(why=assumed.get(item.name, "assumed until measured")) if item.why == "as printed" else item
        for item in found.parts
    )
    found = found._replace(parts=parts)
    if not found.predicted or found.predicted <= 0:
        raise NoPool(
            "nothing is left for the pool, so vLLM refuses to start: a smaller --format, fewer "
            "--max-num-batched-tokens, a larger machine, or several of them (`membudget fleet`, `membudget formats`):\n"
            + "\n".join(found.lines())
        )
    return found


def _printed(option: str, text: str) -> int:
    """A size as a log prints it: 5.98GiB is no whole number of bytes, and is rounded down."""
    import re

    from membudget.units import BYTE_UNITS

    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})\s*([A-Za-z]+)", text.strip())
    if found is None or found[3] not in BYTE_UNITS:
        return size(option, text)
    rounded = int(found[1] + found[2]) * BYTE_UNITS[found[3]] // 10 ** len(found[2])
    return size(option, str(rounded))


def _length(text: str) -> int:
    return -1 if text == "-1" or text == "auto" else context("--max-model-len", text, MAX_CTX)


def _text(model: Model, pool: Pool, rest: Identity | None, notes: list[str]) -> str:
    from membudget.text.terminal import Terminal, plain

    terminal = Terminal.of()
    lines = [terminal.paint(plain(model.name), "bold"), *pool_text.lines(pool)]
    if rest is not None:
        lines += ["", *rest.lines()]
    for note in notes:
        lines += ["", *terminal.wrap(note)]
    return "\n".join(lines)
