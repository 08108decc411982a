"""Public starts of vLLM on real GPUs, and what `available` says of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from membudget.data import data_path
from membudget.engines.vllm.profile import Available, ProfileSettings, RankAvailable, available
from membudget.engines.vllm.profile.graphs import estimate
from membudget.engines.vllm.profile.loaded_weights import ranks
from membudget.engines.vllm.profile.widths import widths
from membudget.engines.vllm.versions import parse
from membudget.formats import Format, get, of_config
from membudget.machines import Machine
from membudget.machines import get as machine_named
from membudget.model import Model, build
from membudget.units import GIB, MIB

FOLDER = Path(data_path("logs")) / "available_kv"
PARTS = ("weights", "activation", "non_torch", "graphs", "available")
#: Cards of the fresh rows that membudget does not know: memory as nvidia-smi prints it, bandwidth as sold.
#: Multiprocessors by NVIDIA's architecture papers: 10,752 CUDA cores of 128 on an A40, 5,120 of 64 on a V100.
_CARDS = {
    "h100-nvl": Machine(
        "h100-nvl", 95830 * MIB, 94 * GIB, False, 3_900_000_000_000,
        title="NVIDIA H100 NVL", compute_capability=(9, 0), sm_count=132,
    ),
    "rtx-3050-6gb": Machine(
        "rtx-3050-6gb", 6144 * MIB, 6 * GIB, False, 168_000_000_000,
        title="NVIDIA GeForce RTX 3050 6GB", compute_capability=(8, 6), sm_count=18,
    ),
    "card-16gb": Machine("card-16gb", 16 * GIB, 16 * GIB, False, 896_000_000_000, compute_capability=(12, 0)),
    "card-24gb-turing": Machine(
        "card-24gb-turing", 24 * GIB, 24 * GIB, False, 672_000_000_000, compute_capability=(7, 5), sm_count=72
    ),
    "card-32gb-volta": Machine(
        "card-32gb-volta", 32768 * MIB, 32 * GIB, False, 900_000_000_000, compute_capability=(7, 0), sm_count=80
    ),
    "a40": Machine(
        "a40", 46068 * MIB, 48 * GIB, False, 696_000_000_000,
        title="NVIDIA A40", compute_capability=(8, 6), sm_count=84,
    ),
}  # fmt: skip


class Scored(NamedTuple):
    """One start: predicted less printed, GiB, of every part that was printed; of the device's memory, and the range."""

    row: dict[str, Any]
    found: Available
    off: dict[str, float]
    share: float
    inside: bool
    width: float
    duplicate: bool


def rows(name: str = "rows.jsonl") -> list[dict[str, Any]]:
    """Every start of that file, as it was published."""
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines() if line.strip()]


def complete(row: dict[str, Any]) -> bool:
    """Whether config, format, machine, version and the settings that decide are known."""
    given = row["settings"]
    known = all(row.get(key) for key in ("config", "format", "machine", "vllm", "total_gib"))
    return known and all(given.get(key) for key in ("utilization", "max_num_seqs", "max_num_batched_tokens"))


def model_of(row: dict[str, Any]) -> Model:
    """The model of a row: a config that ships, or one beside the rows."""
    folder = FOLDER if row["config"].startswith("configs/") else Path(data_path("models"))
    return build(folder / row["config"])


def settings_of(row: dict[str, Any], *, defaults: bool = False) -> ProfileSettings:
    """What the start was told; defaults: only what its user set."""
    given = dict(row["settings"])
    if "mm_limits" in given:
        given["mm_limits"] = tuple((name, count) for name, count in given["mm_limits"].items())
    if "capture_sizes" in given:
        given["capture_sizes"] = tuple(given["capture_sizes"])
    if defaults:
        given = {key: value for key, value in given.items() if not row["defaults"].get(key)}
    if row.get("total_gib"):
        given["total"] = round(row["total_gib"] * GIB)
    return ProfileSettings(**given)


def machine_of(row: dict[str, Any]) -> Machine:
    """The device of a row."""
    return _CARDS.get(row["machine"]) or machine_named(row["machine"])


def format_of(row: dict[str, Any]) -> Format:
    """The weight format of a row; ``declared``: as its config says."""
    return of_config(model_of(row).config) if row["format"] == "declared" else get(row["format"])


def predicted(row: dict[str, Any]) -> Available:
    """What `available` says of a row, its printed figures unseen."""
    return available(model_of(row), format_of(row), machine_of(row), settings_of(row), row["vllm"])


def fresh() -> list[dict[str, Any]]:
    """The starts that were predicted first, with what they printed."""
    answers = {row["id"]: row["printed"] for row in rows("fresh_answers.jsonl")}
    return [{**row, "printed": answers[row["id"]]} for row in rows("fresh.jsonl")]


def scored(starts: list[dict[str, Any]] | None = None) -> Iterator[Scored]:
    """These starts, or every complete one of `rows`, against what they printed."""
    seen: set[tuple[Any, ...]] = set()
    for row in [row for row in rows() if complete(row)] if starts is None else starts:
        key = (row["config"], row["format"], row["vllm"], row["machine"], json.dumps(row["settings"], sort_keys=True))
        settings = {k: v for k, v in row["settings"].items() if k != "max_model_len"}
        key = (*key[:4], json.dumps(settings, sort_keys=True))
        if row["id"] not in _kept:
            _kept[row["id"]] = _scored(row)
        yield _kept[row["id"]]._replace(duplicate=key in seen)
        seen.add(key)


#: By id, which is one row's in all files.
_kept: dict[str, Scored] = {}


def _scored(row: dict[str, Any]) -> Scored:
    found, printed = predicted(row), row["printed"]
    version = parse(row["vllm"])
    rank: Available | RankAvailable = found.ranks[row["stage"]] if "stage" in row else found
    activation = rank.part("activation").bytes
    if version >= (0, 27, 0):  # printed with the graphs' estimate in it
        activation += rank.part("cuda_graphs").bytes
    mine = {
        "weights": rank.part("weights").bytes,
        "activation": activation,
        "non_torch": rank.part("non_torch").bytes,
        "graphs": _graphs(row, found),
        "available": rank.bytes,
    }
    names = {"graphs": "graph_estimate"}
    off = {
        part: mine[part] / GIB - printed[names.get(part, part)]
        for part in PARTS
        if printed.get(names.get(part, part)) is not None
    }
    share, inside = 0.0, False
    if printed["available"] is not None:
        share = off["available"] * GIB / found.total.bytes
        # figures are printed with two decimals: what was left, and the device's total, of which a share is requested
        rounding = 0.005 * (1 + found.utilization)
        inside = rank.low / GIB - rounding <= printed["available"] <= rank.high / GIB + rounding
    return Scored(row, found, off, share, inside, (rank.high - rank.low) / found.total.bytes, False)


def _graphs(row: dict[str, Any], found: Available) -> int:
    """The estimate as printed, also where it is not subtracted."""
    if row["printed"].get("graph_estimate") is None:
        return 0
    model, machine, settings = model_of(row), machine_of(row), settings_of(row)
    version = parse(row["vllm"])
    rank = ranks(model, format_of(row), machine, settings, version)[0]
    wide = widths(model, rank.model, settings.tp)
    return estimate(model, wide, machine, settings, found.steps, version).bytes
