"""What a newer vLLM makes of models and budgets, without a machine: starts, pool, users, concurrency, and why.

    membudget upgrade 0.27.1 0.32.0 budgets/
    membudget upgrade 0.27.1 0.32.0 nvidia/Nemotron-H-56B-Base-8K --kv-cache-memory-bytes 20GiB

Exit code 0: nothing starts less or serves fewer users; 1: something does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from membudget.budgets.budget import Budget, unfiled
from membudget.budgets.file import Sources
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, choose_cache, choose_format, context, count
from membudget.cli.commands.engine_options import add_engine_options, engine_settings
from membudget.data.defaults import DEFAULT_CTX, MAX_CTX, MAX_USERS
from membudget.engines.vllm.options import DECLARED
from membudget.engines.vllm.versions import rules
from membudget.errors import MembudgetError
from membudget.host.detect import find_machine
from membudget.machines import counted
from membudget.model import build
from membudget.planning.load import load
from membudget.planning.upgrade import Upgrade, upgrade
from membudget.sources.locate import locate
from membudget.text.terminal import Terminal, table
from membudget.units import gib

#: The device of models that are named without one.
DEFAULT_MACHINE = "h100-80gb"


def options(parser: Declares) -> None:
    """The arguments of `membudget upgrade`."""
    add = parser.add_argument
    add("before", metavar="BEFORE", help="the version that runs now, as 0.27.1")
    add("after", metavar="AFTER", help="the version that it becomes")
    add("targets", metavar="MODEL|PATH", nargs="*", help="models, budget files, folders of them; default: budgets/")
    add("--machine", metavar="NAME", default=DEFAULT_MACHINE, help=f"of a MODEL; default: {DEFAULT_MACHINE}")
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")
    add("--format", metavar="NAME", help="of a MODEL's weights; default: the one its config declares")
    add("--kv-cache-dtype", metavar="DTYPE", default="auto", help="of a MODEL; default: auto")
    add("--ctx", metavar="N", help="tokens a user of a MODEL; default: 8192")
    add("--users", metavar="N", default="1", help="of a MODEL; default: 1")
    add("--offline", action="store_true", help="never ask the hub")
    add_engine_options(parser, (DECLARED.name,))


def run(args: Arguments) -> Result:
    """Plan each under both versions."""
    before, after = rules(args.before).name, rules(args.after).name
    found: list[Upgrade] = []
    unknown: dict[str, str] = {}
    for target in args.targets or ["budgets"]:
        for budget in _budgets(args, target):
            if budget.engine.name != DECLARED.name:
                continue
            try:
                found.append(upgrade(budget, before, after))
            except MembudgetError as error:
                unknown[budget.id] = str(error)
    if not found and not unknown:
        raise InputError(f"no budget of {DECLARED.title} among {', '.join(args.targets or ['budgets'])}")
    worse = [each for each in found if each.worse]
    document = {
        "before": before,
        "after": after,
        "budgets": [_as_json(each) for each in found],
        "unknown": unknown,
        "moved": sum(bool(each.moved) for each in found),
        "worse": len(worse),
    }
    return Result(1 if worse else 0, document, lambda: _text(found, unknown, before, after))


def _budgets(args: Arguments, target: str) -> list[Budget]:
    """The budgets of a file or folder; of a model one."""
    if os.path.isdir(target) or target.endswith((".yaml", ".yml")):
        tables = (args.machines,) if args.machines else ()
        return [budget for file in load([target], Sources(tables)) for budget in file.budgets]
    located = locate(target, offline=True if args.offline else None)
    if located.config is None:
        raise InputError(f"{target}: only weights; put the model's config.json beside them")
    model = build(located.config, located.repo or target)
    many, name = counted(args.machine)
    machine = find_machine(name, (args.machines,) if args.machines else ())
    settings = engine_settings(args, DECLARED.name)
    sizes = settings.options.get("tensor_parallel_size", 1) * settings.options.get("pipeline_parallel_size", 1)
    form = choose_format(args.format, model, located)
    cache = choose_cache(args.kv_cache_dtype, form, model, located, DECLARED.name)
    ctx = context("--ctx", args.ctx, MAX_CTX) if args.ctx else min(DEFAULT_CTX, model.longest.tokens)
    users = count("--users", args.users, MAX_USERS)
    return [unfiled(model, form, cache, ctx, users, machine, settings, many if many > 1 else sizes)]


def _as_json(each: Upgrade) -> dict[str, Any]:
    return {
        "id": each.budget.id,
        "before": each.before.as_json(),
        "after": each.after.as_json(),
        "moved": list(each.moved),
        "reasons": list(each.reasons),
        "worse": each.worse,
    }


def _text(found: list[Upgrade], unknown: dict[str, str], before: str, after: str) -> str:
    terminal = Terminal.of()
    rows: list[Sequence[str]] = [("", "starts", "KV cache", "users", "concurrency")]
    for each in found:
        if each.moved:
            rows.append((each.budget.id, *_cells(each)))
    lines = [f"vLLM {before} -> {after}: {len(rows) - 1:,} of {len(found):,} move"]
    if len(rows) > 1:
        lines += ["", *table(rows, "<<<<<")]
    for each in found:
        if each.moved:
            lines += ["", terminal.paint(each.budget.id, "bold")]
            for reason in each.reasons:
                lines += terminal.wrap(reason, "  ", "- ")
            if each.after.refusal and not each.before.refusal:
                lines += terminal.wrap(f"{after} refuses to start: {each.after.refusal}", "  ", "- ")
    for name, why in unknown.items():
        lines += ["", *terminal.wrap(f"{name}: not known: {why}")]
    return "\n".join(lines)


def _cells(each: Upgrade) -> tuple[str, ...]:
    old, new = each.before, each.after

    def pair(first: str, second: str) -> str:
        return first if first == second else f"{first} -> {second}"

    def times(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}x"

    return (
        pair("yes" if old.starts else "no", "yes" if new.starts else "no"),
        pair(gib(old.available, 2), gib(new.available, 2)),
        pair(f"{old.users:,}", f"{new.users:,}"),
        pair(times(old.concurrency), times(new.concurrency)),
    )
