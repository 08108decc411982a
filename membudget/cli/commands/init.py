"""Write a first budget for a model and a machine, as a file to edit; an existing file is never touched.

Exit code 0: written; 1: the model does not fit, and nothing is written unless --allow-misfit says so.
With --ci a GitHub workflow and pytest's setting are written too: plain `pytest` then tests every budget.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import suppress

from membudget import formats, machines
from membudget.budgets.budget import Budget, unfiled_id
from membudget.budgets.schema import schema_text
from membudget.budgets.settings import DEFAULT_ENGINE, settings_of
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import (
    InputError,
    available_now,
    choose_cache,
    context,
    count,
    find_model,
    model_argument,
    named_format,
)
from membudget.data.defaults import DEFAULT_CTX, IDLE_SHARE, MAX_CTX, MAX_USERS
from membudget.host.detect import find_machine
from membudget.planning.ledger import Ledger, predict
from membudget.report.plan import model_context
from membudget.sources.locate import Located
from membudget.text.terminal import plain
from membudget.units import exact

WORKFLOW = ".github/workflows/membudget.yml"
#: Runs on every push; nothing here needs a GPU or torch.
_WORKFLOW = """\
name: memory budgets
on: [push, pull_request]
permissions:
  contents: read
jobs:
  budgets:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v5
      - uses: actions/setup-python@v6
        with:
          python-version: "3.12"
      - run: python -m pip install membudget
      - run: python -m pytest -m membudget
"""
#: Files in which pytest looks for its configuration, the first that is there.
_CONFIGURATIONS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
#: Beside the budgets, for editors that read the modeline.
SCHEMA = "budgets.schema.json"


def options(parser: Declares) -> None:
    """The arguments of `membudget init`."""
    add = parser.add_argument
    model_argument(parser)
    add("--machine", metavar="NAME", default=machines.THIS_MACHINE, help=f"default: {machines.THIS_MACHINE}")
    add("--format", metavar="NAME", help="weight format; default: the one its config declares")
    add("--kv-cache-dtype", metavar="DTYPE", default="auto", help="default: auto")
    add("--ctx", metavar="N", help="tokens a user, 32768 or 32k; default: 8192, or the model's own if less")
    add("--users", metavar="N", default="1", help="sequences at once; default: 1")
    add("--to", metavar="DIR", default="budgets", help="the folder it goes to; default: budgets")
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")
    add("--allow-misfit", action="store_true", help="write a budget that does not fit, with `fits: false`")
    add("--ci", action="store_true", help=f"also write {WORKFLOW} and pytest's setting")


def run(args: Arguments) -> Result:
    """Predict, then write."""
    users = count("--users", args.users, MAX_USERS)
    ctx = None if args.ctx is None else context("--ctx", args.ctx, MAX_CTX)
    many, name = machines.counted(args.machine)
    machine = find_machine(name, (args.machines,) if args.machines else ())
    if args.family:
        raise InputError("--as: a budget file cannot say it yet; write the family into the config.json as model_type")
    model, found = find_model(args)
    form = named_format(args.format, model)
    dtype = choose_cache(args.kv_cache_dtype, form, model, found)
    ctx = ctx or min(DEFAULT_CTX, model_context(model) or DEFAULT_CTX)
    share = IDLE_SHARE if machine.unified and machine.platform == "cuda" else None
    engine = settings_of(DEFAULT_ENGINE, gpu_memory_utilization=share)
    ledger = predict(
        Budget("init", model, form, dtype, ctx, users, machine, engine, machines=many, tensor_parallel=many)
    )
    name = unfiled_id(_plain(model.name), form.name, _plain(machine.name), many)
    path = os.path.join(args.to, f"{name}.yaml")
    if not ledger.fits and not args.allow_misfit:
        advice = "nothing is written: change what does not fit, or freeze it with --allow-misfit"
        return Result(
            1,
            {"file": None, "fits": False, "verdict": ledger.verdict, "notes": []},
            lambda: f"{ledger.verdict}\n{advice}",
        )
    text = _yaml(ledger, _reference(args.model, found, args.to))
    _write(path, text)
    schema = os.path.join(args.to, SCHEMA)
    if not os.path.exists(schema):
        _write(schema, schema_text())
    test = _command(["pytest", "--pyargs", "membudget.tests", f"--membudget-budgets={path}"])
    notes = [*model.notes, *available_now(machine, machine.os_reserve), *(_ci(args.to) if args.ci else [])]
    next_steps = f"Next: {_command(['membudget', 'check', path])}\n  or: {test}"
    return Result(
        0,
        {"file": path, "fits": ledger.fits, "verdict": ledger.verdict, "notes": notes},
        lambda: "\n".join([f"wrote {path}", ledger.verdict, *notes, next_steps]),
    )


def _ci(folder: str) -> list[str]:
    """Write the workflow and pytest's setting where there are none; what was done, or is left to do."""
    notes = []
    if os.path.exists(WORKFLOW):
        notes.append(f"{WORKFLOW} exists and stays as it is")
    else:
        _write(WORKFLOW, _WORKFLOW)
        notes.append(f"wrote {WORKFLOW}")
    setting = f"membudget_budgets = {folder}"
    there = next((name for name in _CONFIGURATIONS if os.path.exists(name)), None)
    if there is None:
        _write("pytest.ini", f"[pytest]\n{setting}\n")
        notes.append("wrote pytest.ini: plain `pytest` tests every budget")
    else:
        notes.append(f"add to pytest's section of {there}: {setting}")
    return notes


def _yaml(ledger: Ledger, model: str) -> str:
    budget = ledger.budget
    machine = budget.machine
    where = machine.title or machine.name
    if budget.machines > 1:
        where = f"{budget.machines} x {where}, each one rank"
    lines = [
        f"# yaml-language-server: $schema=./{SCHEMA}",
        f"# {plain(budget.model.name)} in {budget.format.name} on {where}. Written by `membudget init`; make it yours.",
        f"model: {model}",
        *_format(budget),
        f"kv_cache_dtype: {budget.kv_cache_dtype}",
        f"ctx: {budget.ctx}  # tokens a user; a list makes one budget of each",
        f"users: {budget.users}",
        f"machine: {budget.machine_name}",
        *_engine(budget),
        "",
        "expect:  # predicted from config.json: hold it against a source of your own, and say which",
        f"  fits: {'true' if ledger.fits else 'false'}",
        f"  params: {budget.model.count.params:_}",
        f"  kv_per_token: {exact(ledger.kv_per_token)}",
    ]
    return "\n".join(lines) + "\n"


def _format(budget: Budget) -> list[str]:
    """The weights' format; a published mix that no name stands for is what a budget without one has."""
    name = budget.format.name
    try:
        if formats.get(name).key == budget.format.key:
            return [f"format: {name}"]
    except formats.UnknownFormat:
        pass
    return [f"# no format: the weights are in what the model's own config.json declares ({name})"]


def _engine(budget: Budget) -> list[str]:
    options, share = [], budget.engine.gpu_memory_utilization
    if share is not None:
        options.append(f"gpu_memory_utilization: {share}")
    if budget.machines > 1:
        options.append(f"tensor_parallel_size: {budget.tensor_parallel}, pipeline_parallel_size: 1")
    about = "  # what an idle Spark was seen to give; for yours: membudget doctor" if share is not None else ""
    return [f"engine: {{{budget.engine.name}: {{{', '.join(options)}}}}}{about}"] if options else []


def _reference(name: str, found: Located, folder: str) -> str:
    """How the budget names the model: by its id, or by a path that starts from the budget's folder."""
    if found.repo is not None:
        return _quoted(found.repo)
    path = os.path.expanduser(name)
    try:
        path = os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:  # Windows: no way leads from one drive to another
        return _quoted(os.path.abspath(path).replace(os.sep, "/"))
    if not path.strip("./"):  # the folder itself or one above it
        path += "/"
    return _quoted(path if path.startswith(".") else f"./{path}")


def _command(words: list[str]) -> str:
    """A command line as this system's shell takes it: cmd.exe knows no single quotes."""
    if os.name == "nt":
        from subprocess import list2cmdline

        return list2cmdline(words)
    return shlex.join(words)


def _quoted(text: str) -> str:
    """A YAML string: bare where no reader can take it for anything else."""
    return text if re.fullmatch(r"[A-Za-z./][A-Za-z0-9_.-]*/[A-Za-z0-9_./-]+", text) else json.dumps(text)


def _write(path: str, text: str) -> None:
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError:
        raise InputError(f"--to {folder}: it is there, and no folder") from None
    except OSError as error:
        raise InputError(f"--to {folder}: cannot be made: {error.strerror or error}") from None
    try:
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115  (closed below: what is half written must go)
    except FileExistsError:
        raise InputError(f"{path} is there already and stays as it is; delete it, or choose another --to") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    try:
        with file:
            file.write(text)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _plain(name: str) -> str:
    stem = os.path.basename(name.rstrip("/")).lower().removesuffix(".json").removesuffix(".gguf")
    return re.sub(r"[^a-z0-9._-]+", "-", stem).strip("-.") or "model"
