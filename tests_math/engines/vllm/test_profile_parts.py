"""Defaults, graphs, encoder, compilation: each rule against the lines of vLLM or the log that it is from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from membudget.data import data_path
from membudget.engines.vllm.profile import Available, ProfileError, ProfileSettings, available
from membudget.engines.vllm.profile.defaults import Steps, steps, total
from membudget.engines.vllm.profile.graphs import capture_sizes
from membudget.engines.vllm.profile.sampler import runner, sampler
from membudget.engines.vllm.versions import rules
from membudget.formats import get
from membudget.machines import get as machine_named
from membudget.model import Model, build
from membudget.units import GIB
from tests_math.engines.vllm.profile_rows import fresh, predicted

pytestmark = pytest.mark.math

LLAMA = "meta-llama--Llama-3.1-8B"


def _model(name: str) -> Model:
    return build(f"{data_path('models')}/{name}.json")


def _left(name: str, machine: str, version: str, **told: object) -> Available:
    return available(_model(name), get("bf16"), machine_named(machine), ProfileSettings(**told), version)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machine", "version", "told", "expected"),
    [
        ("h100-80gb", "0.19.0", {}, (1024, 8192)),
        ("h100-80gb", "0.19.0", {"usage": "llm"}, (1024, 16384)),
        ("a100-80gb", "0.19.0", {}, (256, 2048)),
        ("a100-80gb", "0.8.5", {}, (1024, 8192)),  # the exception of the A100 came with 0.9
        ("rtx-4090", "0.19.0", {}, (256, 2048)),
        ("rtx-4090", "0.19.0", {"usage": "llm"}, (256, 8192)),
        ("dgx-spark", "0.27.1", {}, (256, 2048)),  # NVML knows no memory there: arg_utils.py 0.27.1:2534
        ("b200", "0.27.1", {}, (1024, 8192)),
        ("b200", "0.28.0", {}, (1024, 16384)),
        ("h100-80gb", "0.19.0", {"usage": "engine"}, (128, 2048)),  # SchedulerConfig's own
        ("h100-80gb", "0.19.0", {"max_num_seqs": 16}, (16, 8192)),
        ("h100-80gb", "0.19.0", {"max_num_seqs": 2, "max_model_len": 1024}, (2, 2048)),
        ("h100-80gb", "0.19.0", {"performance_mode": "throughput"}, (2048, 16384)),
        ("rtx-4090", "0.19.0", {"chunked_prefill": False, "max_model_len": 32768}, (256, 32768)),
    ],
)
def test_defaults(machine: str, version: str, told: dict[str, object], expected: tuple[int, int]) -> None:
    """engine/arg_utils.py get_batch_defaults, by device, usage and version."""
    settings = ProfileSettings(**told)  # type: ignore[arg-type]
    taken = steps(_model(LLAMA), machine_named(machine), settings, rules(version))
    assert (taken.sequences, taken.tokens) == expected


@pytest.mark.parametrize(
    "told", [{"utilization": 0.0}, {"utilization": 1.2}, {"max_num_seqs": 0}, {"usage": "offline"}]
)
def test_what_is_refused(told: dict[str, object]) -> None:
    """A setting that vLLM refuses, with what is allowed."""
    with pytest.raises(ProfileError, match=r"at most 1|1 or more|server, llm or engine"):
        _left(LLAMA, "h100-80gb", "0.19.0", **told)


@pytest.mark.parametrize(
    ("machine", "version", "sequences", "count", "largest"),
    [
        ("h100-80gb", "0.19.0", 1024, 51, 512),  # 51 of each mode in every log of that campaign
        ("h100-80gb", "0.11.0", 1024, 67, 512),  # steps of 8 up to 512
        ("rtx-4090", "0.19.0", 4, 4, 8),
        ("b200", "0.28.0", 1024, 83, 1024),
    ],
)
def test_capture_sizes(machine: str, version: str, sequences: int, count: int, largest: int) -> None:
    """config/vllm.py _set_cudagraph_sizes: how many graphs, and the largest."""
    taken = Steps(sequences, 8192, "")
    sizes = capture_sizes(_model(LLAMA), machine_named(machine), ProfileSettings(), taken, rules(version).version)
    assert (len(sizes), sizes[-1]) == (count, largest)


def test_graphs_are_subtracted_from_0_20_on() -> None:
    """0.19 prints its estimate and leaves it; VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS switches it."""
    assert not _left(LLAMA, "h100-80gb", "0.19.0").part("cuda_graphs").bytes
    assert _left(LLAMA, "h100-80gb", "0.19.0", estimate_graphs=True).part("cuda_graphs").bytes
    assert _left(LLAMA, "h100-80gb", "0.20.0").part("cuda_graphs").bytes
    assert not _left(LLAMA, "h100-80gb", "0.20.0", enforce_eager=True).part("cuda_graphs").bytes


def test_a_start_that_compiles_copies_the_embedding_table() -> None:
    """Qwen3-8B on an RTX 4090 with 0.27.1: 1.18 GiB at the peak when it compiles, 0.19 when it was compiled before."""
    told = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    parts = [
        _left("Qwen--Qwen3-8B", "rtx-4090", "0.27.1", compile_cache=cache, **told).part("activation")
        for cache in ("cold", "warm", None)
    ]
    cold, warm, open_ = parts
    assert cold.bytes == 151936 * 4096 * 2
    assert cold.low <= 1.18 * GIB <= cold.high
    assert warm.bytes < 0.25 * GIB
    assert (open_.bytes, open_.high) == (warm.bytes, cold.high)
    eager = _left("Qwen--Qwen3-8B", "rtx-4090", "0.27.1", compile_cache="cold", enforce_eager=True, **told)
    assert eager.part("activation").bytes == warm.bytes


def test_a_model_that_takes_pictures_is_compiled_without_its_table() -> None:
    """Gemma 4 31B with 0.23 compiled at its start, and left more than a copy of its table of 2.625 GiB would leave."""
    told = {"max_num_seqs": 20, "max_num_batched_tokens": 8192, "compile_cache": "cold"}
    name, table = "nvidia--Gemma-4-31B-IT-NVFP4", 262144 * 5376 * 2
    assert _left(name, "rtx-pro-6000", "0.23.0", **told).part("activation").bytes < table
    for shut in ({"language_model_only": True}, {"mm_limits": (("image", 0), ("video", 0), ("audio", 0))}):
        assert _left(name, "rtx-pro-6000", "0.23.0", **told, **shut).part("activation").bytes == table


def test_gemma_4_keeps_a_rotary_table_of_its_whole_head() -> None:
    """48.5 GiB were printed for Gemma 4 26B: proportional rotation keeps the part that is not rotated as well."""
    row = next(row for row in fresh() if row["id"] == "G03")
    found = predicted(row).part("weights").bytes / GIB
    assert found == pytest.approx(row["printed"]["weights"], abs=0.05)


def test_the_range_of_a_start_of_unknown_cache_reaches_the_cold_one() -> None:
    """Whether it compiles is no error that averages out: the low end is the cold start's."""
    told = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    unknown, cold = (
        _left("Qwen--Qwen3-8B", "rtx-4090", "0.27.1", compile_cache=cache, **told) for cache in (None, "cold")
    )
    assert unknown.low <= cold.low
    assert unknown.bytes > cold.bytes


def test_the_encoder_of_gemma_3_is_in_the_peak() -> None:
    """3.99 GiB printed for Gemma 3 27B on an H100 with 0.19; --limit-mm-per-prompt 0 leaves the text model's."""
    told = {"utilization": 0.95, "max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    with_pictures = _left("google--gemma-3-27b-it", "h100-80gb", "0.19.0", **told).part("activation")
    assert abs(with_pictures.bytes / GIB - 3.99) < 0.02
    without = _left("google--gemma-3-27b-it", "h100-80gb", "0.19.0", mm_limits=(("image", 0),), **told)
    assert without.part("activation").bytes < with_pictures.bytes


def test_runner_and_sampler_by_version() -> None:
    """Runner V2 for Qwen3 from 0.22 on and for all from 0.29; V1's sampler: sort, Triton, FlashInfer."""
    qwen, bf16, plain = _model("Qwen--Qwen3-8B"), get("bf16"), ProfileSettings()
    found = [runner(qwen, bf16, plain, version) for version in ((0, 21, 0), (0, 22, 0), (0, 29, 0))]
    assert found == ["v1", "v2", "v2"]
    assert runner(qwen, bf16, replace(plain, v2_runner=False), (0, 30, 0)) == "v1"
    names = [sampler(plain, version, (9, 0)) for version in ((0, 12, 0), (0, 17, 0), (0, 21, 0))]
    assert names == ["native", "triton", "flashinfer"]
    assert sampler(plain, (0, 21, 0), (7, 0)) == "triton"


def test_the_total_of_a_card_has_a_range() -> None:
    """As given; as CUDA reported it, with how far that moved; a GB10's without."""
    given = total(machine_named("h100-80gb"), ProfileSettings(total=80 * GIB))
    assert (given.low, given.bytes, given.high) == (80 * GIB,) * 3
    for name in ("h100-80gb", "rtx-4090", "dgx-spark"):
        found = total(machine_named(name), ProfileSettings())
        assert found.low <= found.bytes <= found.high


@pytest.mark.parametrize(
    ("version", "tokens", "more"), [("0.25.0", 32768, 0), ("0.28.0", 32768, 3), ("0.28.0", 2048, 0)]
)
def test_a_hybrids_first_full_graph_is_in_the_range(version: str, tokens: int, more: int) -> None:
    """vllm-project/vllm#50780: 128 KiB a token from 0.26 on, 4 GiB at 32,768 tokens; the estimator takes the larger of
    the two first graphs, so a small batch costs nothing (#52872).
    """
    found = _left("Qwen--Qwen3.5-9B", "h100-80gb", version, max_num_batched_tokens=tokens, v2_runner=False)
    part = found.part("cuda_graphs")
    assert (part.high - part.bytes) // GIB >= max(more, 1)
    assert more or part.high - part.bytes == GIB
    plain = _left("Qwen--Qwen3-8B", "h100-80gb", version, max_num_batched_tokens=tokens, v2_runner=False)
    assert plain.part("cuda_graphs").high - plain.part("cuda_graphs").bytes == GIB
