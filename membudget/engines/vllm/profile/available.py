"""Bytes that a start of vLLM has left for its KV cache: requested - weights - activation - non_torch - CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass

from membudget.engines.vllm.profile.activation import activation
from membudget.engines.vllm.profile.defaults import Steps, steps, total, utilization
from membudget.engines.vllm.profile.estimate import Estimate, spread
from membudget.engines.vllm.profile.graphs import graphs
from membudget.engines.vllm.profile.identity import requested_bytes
from membudget.engines.vllm.profile.learned import Learned, replace
from membudget.engines.vllm.profile.loaded_weights import Rank, ranks
from membudget.engines.vllm.profile.lora import lora
from membudget.engines.vllm.profile.non_torch import non_torch
from membudget.engines.vllm.profile.settings import ProfileSettings
from membudget.engines.vllm.profile.widths import widths
from membudget.engines.vllm.versions import DEFAULT, rules
from membudget.formats.base import Format
from membudget.machines import Machine
from membudget.model import Model


@dataclass(frozen=True)
class RankAvailable:
    """One rank of one pipeline stage; its ranks of a stage are alike.

    stage: its index.  parts: requested, weights, activation, non_torch, cuda_graphs, and lora where there are adapters;
    the first minus the others is `bytes`, exactly.  low, high: the range.  runner, sampler: which were taken.
    encoder_known: False where the model has a tower whose dummy batch is left out.
    """

    stage: int
    parts: tuple[Estimate, ...]
    bytes: int
    low: int
    high: int
    runner: str
    sampler: str
    encoder_known: bool

    def part(self, name: str) -> Estimate:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)


@dataclass(frozen=True)
class Available:
    """Bytes for the KV cache, by rank; `bytes`, `low`, `high` and `parts` are those of the rank with the least.

    bytes may be negative: then the start fails.  total: of the device.  utilization: as given or the version's.
    steps: max_num_seqs and max_num_batched_tokens.  ranks: one of every pipeline stage.
    notes: what a reader should know, as (code, text).  version: whose rules these are.
    """

    bytes: int
    low: int
    high: int
    parts: tuple[Estimate, ...]
    total: Estimate
    utilization: float
    steps: Steps
    ranks: tuple[RankAvailable, ...]
    notes: tuple[tuple[str, str], ...]
    version: str

    def part(self, name: str) -> Estimate:
        """The part of that name: ``requested``, ``weights``, ``activation``, ``non_torch``, ``cuda_graphs`` ..."""
        return next(part for part in self.parts if part.name == name)

    @property
    def stages(self) -> tuple[int, ...]:
        """Bytes for the KV cache of every pipeline stage, as `PoolRequest.available` takes them."""
        return tuple(rank.bytes for rank in self.ranks)


def available(
    model: Model,
    form: Format,
    machine: Machine,
    settings: ProfileSettings | None = None,
    version: str = DEFAULT,
    learned: Learned | None = None,
) -> Available:
    """Bytes left for the KV cache of this start, with range, on every rank.

    model, form: the checkpoint.  machine: one device.  settings: what the start is told.  version: of vLLM.
    learned: what starts on this machine really took; it replaces what is assumed and the sources say so.
    Raises `ProfileError` for settings that vLLM refuses, `RankError` for layouts that are refused or not known.
    """
    settings = settings or ProfileSettings()
    r = rules(version)
    share = utilization(settings, r)
    whole = total(machine, settings)
    taken = steps(model, machine, settings, r)
    requested = Estimate(
        "requested",
        requested_bytes(whole.bytes, share, version),
        requested_bytes(whole.low, share, version),
        requested_bytes(whole.high, share, version),
        f"{share:g} x {whole.why}",
        whole.source,
    )
    held = ranks(model, form, machine, settings, r.version)
    found = tuple(
        _rank(rank, len(held), model, form, machine, settings, taken, r.version, requested, learned) for rank in held
    )
    least = min(found, key=lambda rank: rank.bytes)
    notes = _notes(model, machine, settings, found, r.note)
    return Available(least.bytes, least.low, least.high, least.parts, whole, share, taken, found, notes, r.name)


def _rank(
    rank: Rank,
    count: int,
    model: Model,
    form: Format,
    machine: Machine,
    settings: ProfileSettings,
    taken: Steps,
    version: tuple[int, int, int],
    requested: Estimate,
    learned: Learned | None,
) -> RankAvailable:
    ran = activation(
        model, rank.model, form, machine, settings, taken, version,
        first=rank.stage == 0, last=rank.stage == count - 1,
    )  # fmt: skip
    outside = non_torch(machine, settings.tp, settings.pp, version, settings.nodes)
    captured = graphs(model, widths(model, rank.model, settings.tp), machine, settings, taken, version, ran.runner)
    assumed = (rank.weights, ran.estimate, outside, captured)
    used = replace(assumed, learned, model, form, settings, taken, version) if learned else assumed
    if settings.max_loras:
        used = (*used, lora(model, rank.model, settings, taken.tokens, version))
    left = requested.bytes - sum(part.bytes for part in used)
    deviations = [(requested.bytes - requested.low, requested.high - requested.bytes)]
    deviations += [(part.high - part.bytes, part.bytes - part.low) for part in used]
    low, high = spread(left, deviations)
    if used[1] is ran.estimate:
        # to compile or not is not an error that may cancel another: the range reaches as far below the colder figure
        deviations[2] = (max(0, ran.estimate.high - ran.estimate.bytes - ran.gap), deviations[2][1])
        low = spread(left - ran.gap, deviations)[0]
    return RankAvailable(rank.stage, (requested, *used), left, low, high, ran.runner, ran.sampler, ran.encoder.known)


def _notes(
    model: Model, machine: Machine, settings: ProfileSettings, found: tuple[RankAvailable, ...], version: str
) -> tuple[tuple[str, str], ...]:
    notes: list[tuple[str, str]] = []
    if version:
        notes.append(("version", version))
    measured = [part for part in found[0].parts if part.measured]
    if measured:
        since = measured[0].why.partition(",")[0]
        names = ", ".join(part.name for part in measured)
        text = f"{machine.name}: {names} as a start on it took them ({since}, {measured[0].source}), not as assumed"
        notes.append(("learned", text))
    if not all(rank.encoder_known for rank in found):
        kind = model.config.raw.get("model_type")
        text = f"the encoder of {kind} is left out: what its dummy batch takes is unknown, so less is left"
        notes.append(("encoder_unknown", text))
    if machine.unified:
        text = "memory is shared with the system: two starts with the same settings were 1.4 to 3.4 GiB apart"
        notes.append(("unified", text))
    if settings.speculative:
        notes.append(("drafter", "the drafter's own CUDA graphs are not in these parts"))
    if settings.max_loras:
        notes.append(("lora", "vLLM counts what LoRA adapters take to the weights: its log prints both as one figure"))
    return tuple(notes)
