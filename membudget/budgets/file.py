"""budgets/*.yaml -> `Budget` records: every problem as file:line, lists expanded to a product.

for file in load(["budgets/"]):
    file.budgets        what could be read
    file.problems       what could not; a file with problems has no budgets
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from membudget import formats, machines
from membudget.budgets.budget import Budget
from membudget.budgets.ids import plain, stem_of, stems_of, unique
from membudget.budgets.reader import Reader
from membudget.budgets.schema import read
from membudget.budgets.settings import Settings, default_engine, kind_of, parallel_sizes, served_dtype, settings_of
from membudget.checkpoint.stored_format import AsStored
from membudget.data.defaults import DEFAULT_OVERHEAD
from membudget.errors import MembudgetError
from membudget.formats import Format, FormatError, kv
from membudget.host.detect import find_machine
from membudget.machines import Machine
from membudget.model import ConfigError, Model, build
from membudget.sources.checkpoints import checkpoint_of
from membudget.sources.locate import locate
from membudget.text import yaml_strict
from membudget.text.sanitize import printable
from membudget.text.yaml_strict import Problem

T = TypeVar("T")
SUFFIXES = (".yaml", ".yml")
#: What lists may expand to in one file.
MAX_BUDGETS = 4_096
#: The fields that may be lists, in the order in which they join an id.
VARYING = ("model", "format", "kv_cache_dtype", "ctx", "users", "machine")


@dataclass(frozen=True)
class BudgetFile:
    """One file as it was read."""

    #: As messages show it.
    path: str
    #: The ids' first part, unique among the files loaded together.
    stem: str
    budgets: tuple[Budget, ...]
    problems: tuple[Problem, ...]

    @property
    def error(self) -> str:
        """All problems, one a line; empty when the file is good."""
        return "\n".join(map(str, self.problems))


@dataclass(frozen=True)
class Found:
    """A model that was looked up."""

    model: Model
    #: The format that its config declares or its weight files have, or why that is unknown.
    declared: Format | str
    #: Why the KV cache dtype ``auto`` is unknown for it, or "".
    kv: str
    #: What lies beside its config.json, where something does.
    hf_quant_config: dict[str, Any] | None


class NoBudgets(MembudgetError):
    """A path that is neither a budget file nor a folder of them."""


class Sources:
    """Where names in budgets are looked up; models and machines are read once.

    machine_files: users' own machine tables.  models: a folder of checkpoints, for ids that ship no config.
    """

    def __init__(self, machine_files: Sequence[str] = (), models: str | None = None) -> None:
        self.machine_files, self.models_folder = tuple(machine_files), models
        self._models: dict[str, Found | str] = {}
        self._machines: dict[str, Machine | str] = {}

    def model(self, name: str, folder: str) -> Found:
        """The model of that name; paths are relative to `folder`.

        Raises `ValueError`.
        """
        place = os.path.abspath(os.path.join(folder, os.path.expanduser(name))) if _is_path(name) else name
        found = self._models.get(place)
        if found is None:
            try:
                found = self._find(place, name)
            except (MembudgetError, OSError) as error:
                found = str(error)
            self._models[place] = found
        if isinstance(found, str):
            raise ConfigError(found)
        return found

    def machine(self, name: str) -> Machine:
        """The machine of that name.  Raises `ValueError`."""
        found = self._machines.get(name)
        if found is None:
            try:
                found = find_machine(name, self.machine_files)
            except (MembudgetError, OSError) as error:
                found = str(error)
            self._machines[name] = found
        if isinstance(found, str):
            raise machines.UnknownMachine(found)
        return found

    def _find(self, place: str, name: str) -> Found:
        own = None if _is_path(name) else self._in_models_folder(name)
        located = locate(own or place)
        if located.config is None:
            raise ConfigError(f"{name}: only weights lie there, no config.json that says what they make up")
        model = build(located.config, name)
        beside = located.hf_quant_config
        checkpoint = checkpoint_of(located)
        declared: Format | str = (
            _or_why(lambda: formats.of_config(model.config, beside))
            if checkpoint is None
            else AsStored(checkpoint, model)
        )
        known = _or_why(lambda: kv.auto(model.config, beside))
        return Found(model, declared, known if isinstance(known, str) else "", beside)

    def _in_models_folder(self, name: str) -> str | None:
        if not self.models_folder:
            return None
        for spelling in (name, name.replace("/", "--"), name.rpartition("/")[2]):
            place = os.path.join(self.models_folder, spelling)
            if os.path.isfile(os.path.join(place, "config.json")):
                return place
        return None


def load(
    paths: Iterable[str | os.PathLike[str]], sources: Sources | None = None, root: str | None = None
) -> list[BudgetFile]:
    """Read budget files and folders of them, in the order given, each folder sorted.

    root: what shown paths are relative to; the current folder if None.
    Raises `NoBudgets` for a path that does not exist or has no budget in it.
    """
    return load_files(find(paths), sources, root)


def load_files(files: Sequence[str], sources: Sources | None = None, root: str | None = None) -> list[BudgetFile]:
    """Read what `find` found; one that cannot be read says so in its `problems`, the others stand."""
    sources = sources or Sources()
    return [load_file(file, sources, root, stem) for file, stem in zip(files, stems_of(files), strict=True)]


def find(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The budget files that paths stand for, each once.  Raises `NoBudgets`."""
    return list(dict.fromkeys(_files(paths)))


def load_file(
    file: str, sources: Sources | None = None, root: str | None = None, stem: str | None = None
) -> BudgetFile:
    """Read one file; whatever is wrong with it is in `problems`."""
    shown = _shown(file, root)
    stem = stem or stem_of(file)
    try:
        data = yaml_strict.read_file(file)
    except OSError as error:
        return BudgetFile(shown, stem, (), (Problem(shown, 0, "", f"cannot be read: {error.strerror}"),))
    budgets, problems = parse(data, shown, stem, os.path.dirname(os.path.abspath(file)), sources or Sources())
    return BudgetFile(shown, stem, budgets, problems)


def parse(
    data: bytes, file: str, stem: str, folder: str, sources: Sources
) -> tuple[tuple[Budget, ...], tuple[Problem, ...]]:
    """The budgets of a document, or all that is wrong with it, by line.

    folder: what relative paths to models start from.
    """
    node, problems = yaml_strict.parse(data, file)
    reader = Reader(file)
    reader.problems += problems
    budgets: list[Budget] = []
    if node is None:
        if not problems:
            reader.refuse(1, "", "the file is empty; a first budget: `membudget init`, or docs/budgets.md")
    else:
        values = read(node, reader)
        if values is not None and not problems:
            budgets = _resolve(values, reader, stem, folder, sources)
    found = sorted(reader.problems, key=lambda problem: problem.line)
    return (() if found else tuple(budgets)), tuple(found)


def _resolve(values: dict[str, Any], reader: Reader, stem: str, folder: str, sources: Sources) -> list[Budget]:
    """Look names up and expand lists."""
    where = reader.where

    def look_up(field: str, find: Any) -> list[Any]:
        found = []
        for place, name in enumerate(values.get(field, ())):
            path = f"{field}[{place}]" if f"{field}[{place}]" in where else field
            try:
                found.append(find(name))
            except MembudgetError as error:
                reader.refuse(where[path], path, str(error))
        return found

    models = look_up("model", lambda name: sources.model(name, folder))
    kinds = look_up("format", formats.get)
    named = _engine(values["engine"]) if "engine" in values else None
    dtypes = look_up("kv_cache_dtype", lambda name: _kv_dtype(name, named.name if named else None))
    boxes = look_up("machine", lambda name: _machine(name, sources))
    for found in models:
        if "format" not in values and isinstance(found.declared, str):
            text = f"it is missing, and the model does not say: {found.declared}; allowed: {', '.join(formats.names())}"
            reader.refuse(where["model"], "format", text)
        if "auto" in (dtypes or ["auto"]) and found.kv:
            reader.refuse(where.get("kv_cache_dtype", where["model"]), "kv_cache_dtype", f"auto is unknown: {found.kv}")
    if reader.problems:
        return []
    axes: dict[str, list[Any]] = {
        "model": models,
        "format": kinds or [None],
        "kv_cache_dtype": dtypes or ["auto"],
        "ctx": list(values["ctx"]),
        "users": list(values["users"]),
        "machine": boxes,
    }
    number = 1
    for axis in axes.values():
        number *= len(axis)
    if number > MAX_BUDGETS:
        reader.refuse(1, "", f"its lists expand to {number:,} budgets; at most {MAX_BUDGETS:,} are read")
        return []
    vary = [field for field in VARYING if len(axes[field]) > 1]
    common = _common(values, reader.file, where)
    budgets: dict[str, Budget] = {}
    for found, kind, dtype, ctx, users, (many, machine) in itertools.product(*axes.values()):
        model, beside = found.model, found.hf_quant_config
        form = kind or found.declared
        engine = named or settings_of(default_engine(form, machine).name)
        varied = {
            "model": model.name.rstrip("/").rpartition("/")[2],
            "format": kind.name if kind else "",
            "kv_cache_dtype": f"kv-{dtype}",
            "ctx": f"{ctx // 1024}Ki" if ctx % 1024 == 0 else f"{ctx}",
            "users": f"{users}user{'s' if users != 1 else ''}",
            "machine": machine.name if many == 1 else f"{many}x-{machine.name}",
        }
        name = unique("-".join([stem, *(plain(varied[field]) for field in vary)]), budgets)
        own = kind_of(engine.name).kv
        try:
            kv_dtype = (
                kv.auto(model.config, beside, form, own, dtype=served_dtype(engine)).name
                if dtype == "auto"
                else kv.get(dtype, engine=own).name
            )
        except FormatError as error:
            reader.refuse(where["kv_cache_dtype"], "kv_cache_dtype", str(error))
            return []
        budget = Budget(name, model, form, kv_dtype, ctx, users, machine, engine, **common)
        budgets[name] = _laid_out(budget, many, reader)
    return list(budgets.values())


def _laid_out(budget: Budget, many: int, reader: Reader) -> Budget:
    """The budget on so many machines; sizes that are not theirs are noted at the line of the size.

    Whether the engine takes the layout is asked when the budget is planned.
    """
    where = reader.where
    if why := kind_of(budget.engine.name).refuses(budget.format):
        problem = Problem(reader.file, where.get("format", budget.line), "format", why)
        if problem not in reader.problems:
            reader.problems.append(problem)
    uneven = many % budget.engine.options.get("data_parallel_size", 1)
    kinds = ("data",) if uneven else ("tensor", "pipeline", "data")
    fields = [f"engine.{budget.engine.name}.{kind}_parallel_size" for kind in kinds]
    field = next((path for path in fields if path in where), "machine")
    try:
        tp, pp = parallel_sizes(many, budget.engine)
        budget = replace(budget, machines=many, tensor_parallel=tp, pipeline_parallel=pp)
        if many > 1 and budget.breaks:
            field = "break"
            raise MembudgetError(f"breakages are provoked on one machine, and this budget names {many}")
    except MembudgetError as error:
        problem = Problem(reader.file, where.get(field, budget.line), field, str(error))
        if problem not in reader.problems:
            reader.problems.append(problem)
    return budget


def _common(values: dict[str, Any], file: str, where: dict[str, int]) -> dict[str, Any]:
    """What all budgets of a file share."""
    return {
        "overhead": values.get("overhead", DEFAULT_OVERHEAD),
        "os_reserve": values.get("os_reserve"),
        "convention": values.get("capacity", "reported"),
        "expect": values.get("expect", {}),
        "measure": values.get("measure", {}),
        "breaks": values.get("break", ()),
        "ceiling": values.get("ceiling"),
        "file": file,
        "line": where.get("model", 1),
        "where": where,
    }


def _engine(given: dict[str, dict[str, Any]]) -> Settings:
    ((name, options),) = given.items()
    options = dict(options)
    step = options.pop(kind_of(name).step, None)
    own = ("attention", "logits", "gpu_memory_utilization")
    known = {key: options.pop(key) for key in own if key in options}
    return settings_of(name, step, **known, options=options)


def _machine(name: str, sources: Sources) -> tuple[int, Machine]:
    many, plain_name = machines.counted(name)
    return many, sources.machine(plain_name)


def _kv_dtype(name: str, engine: str | None) -> str:
    if name.strip().lower() == "auto":
        return "auto"
    return kv.get(name, engine=kind_of(engine).kv if engine else None).name


def _or_why(read: Callable[[], T]) -> T | str:
    try:
        return read()
    except (MembudgetError, ImportError) as error:
        return str(error)


def _is_path(name: str) -> bool:
    # isabs: also C:\\ where there are drives
    start = name.startswith(("./", "../", "/", "~", ".\\", "..\\")) or os.path.isabs(name)
    return start or name.endswith((".json", ".gguf", ".safetensors"))


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    for given in paths:
        path = os.fspath(given)
        if not path:
            raise NoBudgets("the path is empty: name a budget file, or a folder of them")
        if os.path.isdir(path):
            names = _within(path)
            if not names:
                raise NoBudgets(
                    f"{path}: no budget in it; a budget is a .yaml file, `membudget init` writes a first one"
                )
            yield from names
        elif os.path.exists(path):
            if not path.endswith(SUFFIXES):
                raise NoBudgets(f"{path}: a budget is a .yaml file, or pass a folder of them")
            yield path
        else:
            raise NoBudgets(f"{path}: no such file or folder; `membudget init` writes a first budget")


def _within(folder: str) -> list[str]:
    """Every budget file of a folder and of the folders in it, hidden ones and links to folders left out."""

    def refuse(error: OSError) -> None:
        raise NoBudgets(f"{error.filename}: cannot be read: {error.strerror}") from None

    found = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        # a folder that is named like a budget is one that cannot be read: a problem of its own
        found += [os.path.join(place, name) for name in sorted([*files, *folders]) if _is_budget(name)]
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _is_budget(name))
    return found


def _is_budget(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(".")


def _shown(file: str, root: str | None) -> str:
    try:
        relative = os.path.relpath(file, root or os.getcwd())
    except ValueError:  # another drive
        return printable(file)
    return printable((os.path.abspath(file) if relative.startswith("..") else relative).replace(os.sep, "/"))
