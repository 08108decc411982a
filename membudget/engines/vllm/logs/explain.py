"""A vLLM log explained: did it start, where every byte went, does it match the arithmetic, what would help.

`membudget log FILE` calls `explain_file`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from membudget.engines.vllm.logs.against import against
from membudget.engines.vllm.logs.checks import Check
from membudget.engines.vllm.logs.compare import Compared, compare
from membudget.engines.vllm.logs.document import as_json
from membudget.engines.vllm.logs.given import Given, apply
from membudget.engines.vllm.logs.kinds import Status
from membudget.engines.vllm.logs.log import parse_file
from membudget.engines.vllm.logs.models import another_model, find_model
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.text import explain
from membudget.errors import MembudgetError
from membudget.model import Model


class NoEngine(MembudgetError):
    """A log without a line of a vLLM start-up."""

    default_code = "no_engine"


@dataclass(frozen=True)
class Explained:
    """What `membudget log` prints."""

    #: All engines started, and nothing disagrees.
    good: bool
    #: One object an engine.
    document: list[dict[str, Any]]
    #: One screen an engine.
    text: str
    #: Each engine, and its model where that is known.
    engines: tuple[tuple[EngineLog, Model | None], ...]


_NOTHING_GIVEN = Given()


def explain_file(path: str, given: Given = _NOTHING_GIVEN) -> Explained:
    """Read a log (``-`` for the standard input) and explain it.

    A log of a model that is known to be another one than the given is not compared any further.
    Raises `OSError` for a file that cannot be read, `NoEngine` where no vLLM starts in it.
    """
    engines = parse_file(path)
    if not engines:
        where = "the standard input" if path == "-" else path
        raise NoEngine(
            f"{where}: no line of a vLLM start-up in it (0.6 to 0.33 are known).\n"
            "Give the log from its beginning: `docker logs NAME 2>&1`, `vllm serve ... 2>&1 | membudget log -`."
        )
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    good = True
    found = []
    for index, log in enumerate(engines):
        model, compared = _compared(log, given)
        found.append((log, model))
        documents.append(as_json(log, compared, model))
        head = [f"engine {index + 1} of {len(engines)}"] if len(engines) > 1 else []
        texts.append("\n".join(head + explain(log, compared, model)))
        good = good and documents[-1]["verdict"]["status"] is Status.STARTED and not documents[-1]["differences"]
    return Explained(good, documents, "\n\n".join(texts), tuple(found))


def _compared(log: EngineLog, given: Given) -> tuple[Model | None, Compared]:
    """The model, and the log beside the arithmetic and what was given."""
    contradictions = tuple(apply(log, given))
    if given.model is None:
        model, note = find_model(log)
        compared = compare(log, model, given.known)
        if note:
            compared = replace(compared, note=note if model is None else f"{note}; {compared.note}".rstrip("; "))
    else:
        model, note = given.model, ""
        if another_model(log, model):
            compared = Compared(checks=(_not_the_model(log, model),))
        else:
            compared = compare(log, model, given.known)
            if given.expected is not None:
                compared = replace(compared, checks=(*compared.checks, *against(log, given.expected(log))))
            if any(check.holds is False for check in compared.checks) and _unknown_model(log, model):
                note = f"the log names {log.model}, which may be another model than {model.name}: the arithmetic is its"
                compared = replace(compared, note=f"{note}; {compared.note}".rstrip("; "))
    return model, replace(compared, checks=(*contradictions, *compared.checks))


def _not_the_model(log: EngineLog, model: Model) -> Check:
    named = [log.settings[name].line for name in ("model", "model_tag") if name in log.settings]
    figure = log.get("model")
    line = named[0] if named else figure.line if figure else log.first_line
    text = f"the log is of {log.model}, another model than {model.name}: nothing else is compared"
    return Check("model", False, text, line)


def _unknown_model(log: EngineLog, model: Model) -> bool:
    """Whether the log names a model without a config.json here: a folder, a served name."""
    return bool(log.model) and log.model != model.name and find_model(log)[0] is None
