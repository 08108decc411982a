"""An HTML page to play with a plan: model, format, KV cache, context and users against machines.

One file that opens in any browser and never asks the network; it computes what `membudget plan` computes,
to the byte.
"""

from __future__ import annotations

from membudget import formats, machines
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares, UsageError
from membudget.cli.commands.common import InputError, build_model, choose_cache, choose_format, context, count
from membudget.cli.commands.plan import find_machines
from membudget.data.defaults import DEFAULT_CTX, MAX_CTX, MAX_USERS
from membudget.report import explore, html
from membudget.report.explore import Choice
from membudget.report.plan import model_context
from membudget.sources.locate import locate

DEFAULT_FILE = "explore.html"


def options(parser: Declares) -> None:
    """The arguments of `membudget explore`."""
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="*", help="hub ids, folders, config.json, .gguf or .safetensors files")
    add("-o", "--output", metavar="FILE", default=DEFAULT_FILE, help=f"default: {DEFAULT_FILE}")
    add("--force", action="store_true", help="overwrite a file that membudget did not write")
    add("--as", dest="family", metavar="FAMILY", help="read the configs as this model_type")
    add("--offline", action="store_true", help="never ask the hub")
    add("--format", metavar="NAME", help="the weight format to start with; default: each model's own")
    add("--kv-cache-dtype", metavar="DTYPE", default="auto", help="the KV cache dtype to start with; default: auto")
    add("--ctx", metavar="N", help=f"tokens a user to start with; default: {DEFAULT_CTX:,}, or the model's own if less")
    add("--users", metavar="N", default="8", help="users to start with; default: 8")
    add("--machine", metavar="NAME", action="append", help="bars to start with; may be repeated; default: a few")
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")


def run(args: Arguments) -> Result:
    """Write the page."""
    if not args.models:
        raise UsageError(
            "explore needs a MODEL, as in `membudget explore Qwen/Qwen3-8B` (see `membudget explore --help`)"
        )
    users = count("--users", args.users, MAX_USERS)
    ctx = None if args.ctx is None else context("--ctx", args.ctx, MAX_CTX)
    for name in args.machine or ():
        if machines.counted(name)[0] > 1:
            raise InputError(f"--machine {name}: the page's bars are of one machine; `membudget plan` takes several")
    shown = find_machines(args.machine, args.machines)
    known = machines.all_machines((args.machines,) if args.machines else ())
    every = {**{machine.name: machine for machine in shown}, **known}
    choices = [_choice(name, args) for name in dict.fromkeys(args.models)]
    if ctx is None:
        own = model_context(choices[0].model)
        ctx = min(DEFAULT_CTX, own or DEFAULT_CTX)
    start = explore.Start(ctx, users, tuple(machine.name for machine in shown))
    size = html.write(args.output, explore.render(choices, every.values(), start), args.force)
    document = {
        "file": args.output,
        "bytes": size,
        "models": [choice.model.name for choice in choices],
        "machines": list(every),
    }
    return Result(0, document, lambda: _text(args.output, size, len(choices), len(every)))


def _choice(name: str, args: Arguments) -> Choice:
    found = locate(name, offline=True if args.offline else None)
    model = build_model(Arguments(model=name, family=args.family), found)
    notes: list[str] = []
    form = choose_format(args.format, model, found, notes)
    if model.unproven:
        notes.insert(0, f"unproven: {model.model_type} treated as {model.read_as} because of --as")
    notes += model.notes
    form.weigh(model)  # a format that does not apply is an error here, not a dead option on the page
    cache = choose_cache(args.kv_cache_dtype, form, model, found)
    return Choice(model, form, cache, tuple(notes))


def _text(path: str, size: int, models: int, known: int) -> str:
    many = f"{models:,} model{'s' if models != 1 else ''}"
    return (
        f"{path}: {many}, {len(formats.names())} weight formats, {known} machines in {size / 1000:,.0f} kB; "
        "open it in any browser"
    )
