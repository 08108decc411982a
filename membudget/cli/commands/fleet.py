"""How many devices so many users need: a lower bound in bytes, and which layouts of a node hold them.

Give a MODEL, or its size and cache shape: --params 70 --layers 80 --kv-heads 8 --head-dim 128.
Exit code 0: the node has the bytes and, of a MODEL, a layout of tensor x pipeline parallel that fits; 1: it is
refused, with both figures. From --params nothing can be laid out: 0 and 1 are the bound's alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from membudget import machines
from membudget.budgets.settings import DEFAULT_ENGINE, gguf_engine, is_gguf, kind_of
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import (
    InputError,
    choose_cache,
    context,
    count,
    find_model,
    model_argument,
    named_format,
    short_repr,
)
from membudget.formats import Format
from membudget.host.detect import find_machine
from membudget.machines import Machine
from membudget.planning.fleet import DEFAULT_DEVICES, DEFAULT_NODE, CacheShape, Fleet, FleetLoad, for_model, for_params
from membudget.planning.fleet_text import as_json, verdict
from membudget.planning.fleet_text import lines as lines_of
from membudget.text.terminal import Terminal, plain

_MOST = 2**40


def options(parser: Declares) -> None:
    """The arguments of `membudget fleet`."""
    add = parser.add_argument
    model_argument(parser, optional=True)
    add("--params", metavar="N", help="parameters in billions, 70 or 70.6, in place of a MODEL")
    add("--layers", metavar="N", help="with --params: layers")
    add("--kv-heads", metavar="N", help="with --params: KV heads")
    add("--head-dim", metavar="N", default="128", help="with --params: default: 128")
    add("--heads", metavar="N", help="with --params: attention heads, for the tensor-parallel check")
    add("--format", metavar="NAME", help="weight format; default: the config's own, bf16 with --params")
    add("--kv-cache-dtype", metavar="DTYPE", default="auto", help="default: auto")
    add("--ctx", "--seq-len", dest="ctx", metavar="N", default="8192", help="tokens a user; default: 8192")
    add("--users", metavar="N", default="1", help="sequences at once, each at full context; default: 1")
    add(
        "--device", metavar="NAME", action="append", help=f"one kind, counted in; default: {', '.join(DEFAULT_DEVICES)}"
    )
    add("--node", metavar="NxNAME", help=f"held against, '8x h200'; default: {DEFAULT_NODE[1]}x{DEFAULT_NODE[0]}")
    add("--tp", metavar="N", action="append", help="also look at this tensor-parallel size")
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")


def run(args: Arguments) -> Result:
    """Size."""
    ctx, users = context("--ctx (seq_len)", args.ctx, _MOST), count("--users", args.users, _MOST)
    files = (args.machines,) if args.machines else ()
    devices = [_device(name, files) for name in args.device or DEFAULT_DEVICES]
    node = _node(args.node, files)
    notes = _notes(args.node, node)
    sizes = [count("--tp", size, 4096) for size in args.tp or ()]
    if (args.model is None) == (args.params is None):
        raise InputError("give a MODEL or --params, and not both; see `membudget fleet --help`")
    if args.params is None:
        model, found = find_model(args)
        form = named_format(args.format, model)
        notes += [*model.notes, *_engine_notes(form, [*devices, node[0]] if args.node else devices)]
        dtype = choose_cache(args.kv_cache_dtype, form, model, found, DEFAULT_ENGINE)  # whose layouts are tried
        fleet = for_model(model, form, FleetLoad(ctx, users, dtype, devices, node, sizes))
        name, format_name = model.name, form.name
    else:
        format_name = args.format or "bf16"
        dtype = "bf16" if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
        fleet = _from_params(args, format_name, FleetLoad(ctx, users, dtype, devices, node, sizes))
        name = f"{args.params.strip().removesuffix('B').strip()}B parameters"
    document = {"model": name, "format": format_name, "kv_cache_dtype": dtype, **as_json(fleet), "notes": notes}
    return Result(0 if fleet.fits else 1, document, lambda: _text(fleet, name, format_name, dtype, notes))


def _from_params(args: Arguments, form: str, load: FleetLoad) -> Fleet:
    missing = [name for name in ("layers", "kv_heads") if getattr(args, name) is None]
    if missing:
        shown = " and ".join("--" + name.replace("_", "-") for name in missing)
        raise InputError(f"--params needs {shown} beside it, for the cache; or give a MODEL")
    heads = None if args.heads is None else count("--heads", args.heads, 10**6)
    shape = CacheShape(
        layers=count("--layers", args.layers, 10_000),
        kv_heads=count("--kv-heads", args.kv_heads, 10**6),
        head_dim=count("--head-dim", args.head_dim, 10**6),
        heads=heads,
    )
    return for_params(args.params, shape, load, form)


def _device(name: str, files: Sequence[str]) -> Machine:
    """One kind of device; several are refused here, for how many is the answer."""
    try:
        return find_machine(name, files)
    except machines.UnknownMachine as error:
        if machines.looks_counted(name):
            raise InputError(
                f"--device: {short_repr(name)} names several; --device takes one kind of device, as --device h200: how "
                "many are needed is what fleet says. A node of several is given as --node 8xh200"
            ) from None
        raise InputError(f"--device: {error}") from None


def _node(text: str | None, files: Sequence[str]) -> tuple[Machine, int]:
    if text is None:
        return machines.get(DEFAULT_NODE[0], files), DEFAULT_NODE[1]
    try:
        number, name = machines.counted(text, 10**6)
        return find_machine(name.strip(), files), number
    except machines.UnknownMachine as error:
        raise InputError(f"--node: {error}") from None


def _engine_notes(form: Format, devices: Sequence[Machine]) -> list[str]:
    """What is not vLLM's, whose layouts and caches are planned here."""
    kind, reader = kind_of(DEFAULT_ENGINE), gguf_engine()
    notes, other = [], f"a fleet is planned for {kind.title}, and `membudget plan --engine {reader.name}` for the other"
    if is_gguf(form):
        notes.append(f"{form.name} is GGUF, which {reader.title} reads; {other}")
    metal = dict.fromkeys(machine.name for machine in devices if machine.platform not in kind.platforms)
    if metal:
        notes.append(f"{kind.title} has no Metal, as {', '.join(metal)} needs; {other}")
    return notes


def _notes(text: str | None, node: tuple[Machine, int]) -> list[str]:
    """What was taken for granted of the node."""
    machine, devices = node
    if text is None:
        default = f"{DEFAULT_NODE[1]}x{DEFAULT_NODE[0]}"
        return [f"no --node was named: the verdict is on {default}; name yours with --node NxNAME"]
    if machines.counted(text, 10**6)[1] == text:
        return [
            f"--node {text.strip()} names no number: the node was taken to have {devices} device; "
            f"one of eight is --node 8x{machine.name}"
        ]
    return []


def _text(fleet: Fleet, name: str, form: str, dtype: str, notes: list[str]) -> str:
    terminal = Terminal.of()
    title = terminal.paint(plain(name) if " " not in name else name, "bold")
    lines = [terminal.dot.join([title, f"{form} weights", f"{dtype} KV cache"])]
    for line in lines_of(fleet):
        lines += terminal.wrap(line) if "  " not in line else [line]
        if line == verdict(fleet):
            for note in notes:
                lines += terminal.wrap(note)
    return "\n".join(lines)
