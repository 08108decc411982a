"""What starts on this machine really took, and a plan that uses it: measured replaces assumed, and says so.

entry = learn(log, model, form, machine)     log: an `EngineLog`; entry.as_json() is kept with the machine
learned = Learned((entry,))                  or of_json(document) for each that was kept
available(model, form, machine, settings, version, learned)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from membudget.engines.vllm.profile.defaults import Steps, steps
from membudget.engines.vllm.profile.estimate import Estimate
from membudget.engines.vllm.profile.settings import ProfileError, ProfileSettings
from membudget.engines.vllm.versions import rules
from membudget.formats.base import Format
from membudget.machines import Machine
from membudget.machines.measured import read
from membudget.model import Model

#: The kind of `membudget.machines.measured` that an `Entry` is kept as.
KIND = "vllm_profile"
#: Figures are printed with two decimals.
_PRINTED = 2**30 // 200


@dataclass(frozen=True)
class Entry:
    """One start's figures, in bytes; None where the log does not print them.

    model_type, form, version, tp, pp, max_num_seqs, max_num_batched_tokens, vocab_size, hidden_size: of which start.
    weights, activation, non_torch, cuda_graphs: what it took.  when: date of the log.  source: where it is.
    """

    model_type: str
    form: str
    version: str
    tp: int
    pp: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    vocab_size: int
    hidden_size: int
    weights: int | None = None
    activation: int | None = None
    non_torch: int | None = None
    cuda_graphs: int | None = None
    when: str = ""
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `of_json` reads them."""
        return asdict(self)


class StartLog(Protocol):
    """What `learn` reads of a parsed log; `logs.record.EngineLog` is one."""

    @property
    def version(self) -> str | None:
        """As printed."""

    def value(self, name: str) -> Any:
        """A figure in bytes, None where it is not printed."""

    def setting(self, name: str) -> Any:
        """An argument or a config entry, None where it is not printed."""


@dataclass(frozen=True)
class Learned:
    """All that was learned on one machine, oldest first."""

    entries: tuple[Entry, ...] = ()

    @classmethod
    def on(cls, machine: Machine) -> Learned:
        """What `membudget log --learn` kept of this machine.

        Raises `MeasuredError` and `ProfileError` for a file that cannot be read.
        """
        return cls(tuple(of_json(document) for document in read(machine.name, KIND)))


def learn(
    log: StartLog,
    model: Model,
    form: Format,
    machine: Machine,
    settings: ProfileSettings | None = None,
    *,
    when: str = "",
    source: str = "",
) -> Entry:
    """What one start took, for the next plan on this machine.

    settings: what it was told; without them, what its log prints, and the version's defaults for the rest.
    Raises `ProfileError` where the log does not say its version, or prints no figure that could be learned.
    """
    if not log.version:
        raise ProfileError("measured profile: the log does not print vLLM's version")
    given = settings or of_log(log)
    taken = steps(model, machine, given, rules(log.version))
    weights, peak = log.value("weights"), log.value("peak_activation")
    if log.value("peak_with_graphs") is not None:  # since 0.27 the closing line adds the estimate to the peak
        peak = log.value("peak_with_graphs") - (log.value("cudagraph_estimate") or 0)
    elif log.value("torch_peak") is not None:
        peak = log.value("torch_peak")
    outside, consumed = log.value("non_torch"), log.value("consumed")
    if outside is None and None not in (consumed, weights):
        outside = consumed - weights
    figures = (weights, peak, outside, log.value("cudagraph_estimate"))
    if figures == (None, None, None, None):
        raise ProfileError("measured profile: the log prints neither weights, peak activation nor non-torch memory")
    return Entry(
        str(model.model_type), form.name, log.version, given.tp, given.pp, taken.sequences, taken.tokens,
        model.config.integer("vocab_size"), model.config.integer("hidden_size"), *figures, when, source,
    )  # fmt: skip


#: `ProfileSettings` by the names of vLLM's arguments.
_NAMES = {
    "gpu_memory_utilization": "utilization",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "enable_chunked_prefill": "chunked_prefill",
} | {
    name: name
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enforce_eager", "enable_expert_parallel")
}


def of_log(log: StartLog) -> ProfileSettings:
    """The settings that a log prints; a value of another kind than vLLM's is left out."""
    found: dict[str, Any] = {}
    for theirs, ours in _NAMES.items():
        value, default = log.setting(theirs), getattr(ProfileSettings, ours)
        kinds = (bool,) if isinstance(default, bool) else (int, float) if ours == "utilization" else (int,)
        if isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool):
            found[ours] = value
    return ProfileSettings(**found)


def of_json(document: Mapping[str, Any]) -> Entry:
    """An `Entry` out of plain values.  Raises `ProfileError` for a field that is missing, unknown or no number."""
    known = Entry.__dataclass_fields__
    wrong = sorted(set(document) - set(known))
    if wrong:
        raise ProfileError(f"measured profile: unknown field {wrong[0]!r}; allowed: {', '.join(known)}")
    texts = ("model_type", "form", "version", "when", "source")
    for name, value in document.items():
        fits = isinstance(value, str) if name in texts else value is None or _whole(value)
        if not fits:
            raise ProfileError(
                f"measured profile: {name} is {value!r}; allowed: {'text' if name in texts else 'bytes'}"
            )
    try:
        return Entry(**document)
    except TypeError as error:
        raise ProfileError(f"measured profile: {error}") from None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def replace(
    parts: Sequence[Estimate],
    learned: Learned,
    model: Model,
    form: Format,
    settings: ProfileSettings,
    taken: Steps,
    version: tuple[int, int, int],
) -> tuple[Estimate, ...]:
    """The parts of a start, each measured one in place of the assumed: the newest entry that fits.

    Non-torch memory fits every model of the same version (major.minor), TP and PP; activation and graphs fit the same
    model shape and steps; weights the same model shape and format.  Nothing is averaged.
    """
    out = []
    for part in parts:
        entry = _newest(learned.entries, part.name, model, form, settings, taken, version)
        size = getattr(entry, part.name) if entry else None
        uncharged = part.name == "cuda_graphs" and not part.high  # a start that does not subtract the estimate
        if entry is None or size is None or uncharged:
            out.append(part)
            continue
        why = f"measured{' ' + entry.when if entry.when else ''}, vLLM {entry.version}; assumed was {part.bytes:,} B"
        out.append(
            Estimate(part.name, size, size - _PRINTED, size + _PRINTED, why, entry.source or "measured here", True)
        )
    return tuple(out)


def _newest(
    entries: Iterable[Entry],
    name: str,
    model: Model,
    form: Format,
    settings: ProfileSettings,
    taken: Steps,
    version: tuple[int, int, int],
) -> Entry | None:
    found = None
    for entry in entries:
        if getattr(entry, name, None) is None or (entry.tp, entry.pp) != (settings.tp, settings.pp):
            continue
        major, _, rest = entry.version.partition(".")
        same_version = (major, rest.partition(".")[0]) == (str(version[0]), str(version[1]))
        same_model = (
            entry.model_type == model.model_type
            and entry.vocab_size == model.config.get("vocab_size")
            and entry.hidden_size == model.config.get("hidden_size")
            and entry.form == form.name
        )
        same_steps = (entry.max_num_seqs, entry.max_num_batched_tokens) == (taken.sequences, taken.tokens)
        if name == "non_torch":
            fits = same_version
        elif name == "weights":
            fits = same_model
        else:
            fits = same_model and same_version and same_steps
        if fits:
            found = entry
    return found
