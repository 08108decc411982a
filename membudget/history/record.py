"""One run on one machine, as it is kept: what ran, with which versions, and every line predicted and measured.

The schema has a number.  A record of another schema is refused by name, never half-read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from membudget.budgets.tolerance import Tolerance, parse
from membudget.errors import MembudgetError
from membudget.units import UnitError

#: The schema that is written.
SCHEMA = 1
#: The most users that the closed form finds on the whole machine; ``max_users`` is the edge under a ceiling.
WHOLE_MACHINE = "max_users_whole_machine"
UNITS = ("bytes", "count", "x100", "word")
#: Lines that are sizes or numbers of things, and no differences of two readings: never less than 0.
WHOLE = frozenset(
    {"weights", "kv_cache", "activations", "overhead", "total", "params", "kv_per_token", "kv_growth", "steps_cache"}
    | {"max_users", "max_users_closed_form", WHOLE_MACHINE, "static_cache", "prefill_peak", "pool_concurrency"}
    | {"pool_tokens", "pool_blocks", "pool_block_tokens", "pool_block_bytes", "edge_cache", "num_blocks"}
)
#: No machine has so many bytes, tokens or users.
IMPOSSIBLE = 2**63
VERDICTS = ("passed", "failed", "recorded")
#: What a line's figure was made from: columns of whole numbers by name, all of one length.
Samples = dict[str, list[int | None]]


class RecordError(MembudgetError):
    """A record that is not one: says which field, what it is and what is allowed."""


class Line(NamedTuple):
    """One line of a budget: ``weights``, ``kv_cache``, ``overhead.cuda_context``, ``pool_tokens``.

    predicted, measured: bytes, a count or a word; None where there is none.
    unit: ``bytes``, ``count``, ``x100`` (hundredths of a multiple: 5300 is 53.00x) or ``word``.
    allowed: a tolerance as in budgets, "" for the default, by which the line alone was not judged.
    """

    predicted: int | str | None = None
    measured: int | str | None = None
    unit: str = "bytes"
    allowed: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the line is as near to its prediction as it allows; None where it was not judged.

        Raises `UnitError` where `allowed` is not a tolerance.
        """
        if not self.allowed or self.measured is None:
            return None
        if self.unit == "word":
            return None if self.predicted is None else self.measured == self.predicted
        tolerance = self.tolerance
        if not isinstance(self.measured, int) or (self.predicted is None and tolerance.kind != "below"):
            return None
        return tolerance.allows(int(self.predicted or 0), self.measured)

    @property
    def tolerance(self) -> Tolerance:
        """`allowed` as it is read."""
        return parse(self.allowed, "bytes" if self.unit == "bytes" else "count")


class Entry(NamedTuple):
    """What a run says of one budget.

    verdict: ``passed``, ``failed``, or ``recorded`` (nothing was judged); an entry that is read is failed where one of
    its lines does not hold, whatever it says, and `why` then begins with `CONTRADICTS`.  settings: what was asked,
    flags of the engine included.  why: the first line of a failure.
    samples: by line, what it was measured at: ``kv_growth`` has tokens, batch and held bytes,
    ``fragmentation_...`` step, total, allocated and reserved bytes (None: unknown), ``max_users`` users and fits.
    """

    verdict: str
    lines: dict[str, Line]
    settings: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default, never written to)
    why: str = ""
    samples: dict[str, Samples] = {}  # noqa: RUF012


class Record(NamedTuple):
    """One run.

    id: unique, begins with the time.  time: UTC, ISO 8601.  source: what made it (``pytest -m math``).
    machine: name, title, memory (bytes), driver, cuda, kernel, arch.  versions: of everything that moves
    bytes.  flags: environment variables that do.  commit: of the project, ``-dirty`` behind it; or "".
    reference: why this run is the new reference; "" where it is an ordinary one.
    skipped: budgets that could not be asked, with the reason.
    """

    id: str
    time: str
    source: str
    machine: dict[str, Any]
    versions: dict[str, str]
    budgets: dict[str, Entry]
    flags: dict[str, str] = {}  # noqa: RUF012
    commit: str = ""
    reference: str = ""
    skipped: dict[str, str] = {}  # noqa: RUF012

    @property
    def green(self) -> bool:
        """Whether nothing failed."""
        return bool(self.budgets) and all(entry.verdict != "failed" for entry in self.budgets.values())

    @property
    def machine_name(self) -> str:
        """What its file is called after."""
        return str(self.machine.get("name", "unknown"))

    def as_json(self) -> dict[str, Any]:
        """The record as it is written; empty fields are left out."""
        out: dict[str, Any] = {"schema": SCHEMA, "id": self.id, "time": self.time, "source": self.source}
        out["machine"], out["versions"] = self.machine, self.versions
        for name in ("flags", "commit", "reference", "skipped"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        out["budgets"] = {budget: _entry_json(entry) for budget, entry in self.budgets.items()}
        return out


def from_json(raw: object) -> Record:
    """Read one record.  Raises `RecordError` that names the field."""
    if not isinstance(raw, dict):
        raise RecordError(f"a record is an object, this is {_kind(raw)}")
    schema = raw.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise RecordError(f"schema is {schema!r}: a record says which schema it has, a whole number up to {SCHEMA}")
    if schema > SCHEMA:
        raise RecordError(f"schema {schema} is newer than {SCHEMA}, the newest known here: install a newer membudget")
    if schema < SCHEMA:
        raise RecordError(f"schema {schema} is not supported; allowed is {SCHEMA}")
    return _read(dict(raw))


def _read(raw: dict[str, Any]) -> Record:
    known = ("schema", *Record._fields)
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise RecordError(f"unknown field {unknown[0]!r}; schema {SCHEMA} has {', '.join(known)}")
    for name in ("id", "time", "source"):
        if not isinstance(raw.get(name), str) or not raw[name]:
            raise RecordError(f"{name} is {raw.get(name)!r}: text is needed")
    for name in ("commit", "reference"):
        if not isinstance(raw.get(name, ""), str):
            raise RecordError(f"{name} is {_kind(raw[name])}: text is needed")
    for name in ("versions", "flags", "skipped"):
        table = raw.get(name, None if name == "versions" else {})
        if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
            raise RecordError(f"{name} is not a table of names and texts")
    for name in ("machine", "budgets"):
        if not isinstance(raw.get(name), dict):
            raise RecordError(f"{name} is {_kind(raw.get(name))}: a table is needed")
    if raw["machine"].get("memory") is not None:
        _number("machine.memory", raw["machine"]["memory"], 0)
    budgets = {name: _entry(name, value) for name, value in raw["budgets"].items()}
    return Record(**{**{key: value for key, value in raw.items() if key != "schema"}, "budgets": budgets})


def _entry(budget: str, raw: object) -> Entry:
    if not isinstance(raw, dict) or set(raw) - set(Entry._fields) or not isinstance(raw.get("lines"), dict):
        raise RecordError(f"budgets.{budget} is not an object of {', '.join(Entry._fields)}")
    if raw.get("verdict") not in VERDICTS:
        raise RecordError(f"budgets.{budget}.verdict is {raw.get('verdict')!r}; allowed are {', '.join(VERDICTS)}")
    if not isinstance(raw.get("settings", {}), dict) or not isinstance(raw.get("why", ""), str):
        raise RecordError(f"budgets.{budget}: settings is a table and why a text")
    _settings(f"budgets.{budget}.settings", raw.get("settings", {}))
    lines = {sys.intern(name): _line(f"budgets.{budget}.lines.{name}", value) for name, value in raw["lines"].items()}
    for name in WHOLE & lines.keys():
        _whole(f"budgets.{budget}.lines.{name}", lines[name])
    verdict, why = raw["verdict"], raw.get("why", "")
    off = [f"{name} is {_pair(line)}" for name, line in lines.items() if line.holds is False]
    if off and verdict != "failed":
        more = f" and {len(off) - 1:,} more" if len(off) > 1 else ""
        verdict, why = "failed", f"{CONTRADICTS}: it says {verdict}, and {off[0]}{more}"
    return Entry(verdict, lines, raw.get("settings", {}), why, _samples(budget, raw))


#: How the reason of an entry begins whose verdict is another one than its own numbers give.
CONTRADICTS = "contradicts itself"


def _pair(line: Line) -> str:
    unit = " B" if line.unit == "bytes" else ""
    one, other = (
        f"{value:,}{unit}" if isinstance(value, int) else str(value) for value in (line.measured, line.predicted)
    )
    predicted = "" if line.predicted is None else f", {other} predicted"
    return f"{one} measured{predicted}, allowed {line.allowed}"


def _whole(where: str, line: Line) -> None:
    for side in ("predicted", "measured"):
        value = getattr(line, side)
        if isinstance(value, int) and value < 0:
            what = "bytes" if line.unit == "bytes" else line.unit
            raise RecordError(f"{where}.{side} is {value:,}: no size is negative; allowed are 0 {what} and more")


def _settings(where: str, settings: dict[str, Any]) -> None:
    """The settings that pages and drift compute with; all others are printed as they are."""
    for name in ("ctx", "users"):
        if name in settings:
            _number(f"{where}.{name}", settings[name], 1)
    caches = settings.get("caches", [])
    if not isinstance(caches, list) or not all(isinstance(kind, str) for kind in caches):
        raise RecordError(f"{where}.caches is {_kind(caches)}: a list of texts is needed")


def _number(where: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= IMPOSSIBLE:
        shown = repr(value)
        raise RecordError(f"{where} is {shown if len(shown) <= 30 else _kind(value)}: a whole number from {least}")


def _possible(where: str, value: object) -> None:
    if isinstance(value, int) and abs(value) > IMPOSSIBLE:
        raise RecordError(f"{where} has {len(str(abs(value)))} digits: no machine has so much")


def _samples(budget: str, raw: dict[str, Any]) -> dict[str, Samples]:
    found = raw.get("samples", {})
    if not isinstance(found, dict):
        raise RecordError(f"budgets.{budget}.samples is {_kind(found)}: a table by line is needed")
    for line, columns in found.items():
        where = f"budgets.{budget}.samples.{line}"
        if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
            raise RecordError(f"{where} is not a table of columns")
        if len({len(column) for column in columns.values()}) > 1:
            raise RecordError(f"{where}: its columns are not of one length")
        for name, column in columns.items():
            odd = [value for value in column if value is not None and type(value) is not int]
            if odd:
                raise RecordError(f"{where}.{name} has {odd[0]!r}: whole numbers are needed, null where unknown")
            for value in column:
                _possible(f"{where}.{name}", value)
    return found


def _line(where: str, raw: object) -> Line:
    if not isinstance(raw, dict) or set(raw) - set(Line._fields):
        raise RecordError(f"{where} is not an object of {', '.join(Line._fields)}")
    line = Line(**raw)
    if line.unit not in UNITS or not isinstance(line.allowed, str):
        raise RecordError(f"{where}: unit is one of {', '.join(UNITS)}, allowed is a text")
    wanted = str if line.unit == "word" else int
    for side in ("predicted", "measured"):
        value = getattr(line, side)
        if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
            kind = "a word" if wanted is str else "a whole number"
            raise RecordError(f"{where}.{side} is {value!r}: {kind} is needed")
        _possible(f"{where}.{side}", value)
    try:
        line.holds  # noqa: B018
    except UnitError as error:
        raise RecordError(f"{where}.allowed: {error}") from None
    if len(_SHARED) > 100_000:
        _SHARED.clear()
    return _SHARED.setdefault(line, line)


#: Lines that were read: most of a run are those of the run before, and are kept once.
_SHARED: dict[Line, Line] = {}


def _entry_json(entry: Entry) -> dict[str, Any]:
    out: dict[str, Any] = {"verdict": entry.verdict}
    if entry.settings:
        out["settings"] = entry.settings
    if entry.why:
        out["why"] = entry.why
    out["lines"] = {name: _line_json(line) for name, line in entry.lines.items()}
    if entry.samples:
        out["samples"] = entry.samples
    return out


def _line_json(line: Line) -> dict[str, Any]:
    return {
        name: value
        for name, value in line._asdict().items()
        if value is not None and value != Line._field_defaults.get(name)
    }


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "nothing"}.get(type(value), repr(value))


def samples_of(rows: Iterable[Any]) -> dict[str, Samples]:
    """Samples of `membudget.measure.comparison` rows as columns, by line; rows without any are left out."""
    return {
        row.name: {name: [sample.get(name) for sample in row.samples] for name in row.samples[0]}
        for row in rows
        if row.samples
    }


def as_table(raw: Mapping[str, Any]) -> dict[str, str]:
    """Values as texts, without those that are None."""
    return {str(name): str(value) for name, value in raw.items() if value is not None}
