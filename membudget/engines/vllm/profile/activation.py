"""Peak of the profile run above the weights: the larger of the forward and the dummy sampler run.

vLLM: v1/worker/gpu_model_runner.py profile_run, _dummy_run and _dummy_sampler_run (runner V1),
v1/worker/gpu/model_runner.py (runner V2); torch.compile's forward keeps of one layer what `forward` counts.
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.vllm.pool.derive import model_dtype
from membudget.engines.vllm.profile import sampler as samplers
from membudget.engines.vllm.profile.defaults import Steps
from membudget.engines.vllm.profile.encoder import Held, held, takes_media
from membudget.engines.vllm.profile.estimate import Estimate
from membudget.engines.vllm.profile.settings import ProfileSettings
from membudget.engines.vllm.profile.widths import Widths, widths
from membudget.formats.base import Format
from membudget.machines import Machine
from membudget.model import Model
from membudget.units import MIB

Version = tuple[int, int, int]

#: cuBLAS's workspace as torch sets it, alive from the first matrix product on (ATen/cuda/CublasHandlePool.cpp: :4096:8
#: on Hopper, :4096:2:16:8 elsewhere).
_CUBLAS_HOPPER, _CUBLAS = 32 * MIB, 8 * MIB + MIB // 8
#: The mixture's workspace is at most that of so many tokens (envs.py VLLM_FUSED_MOE_CHUNK_SIZE, 0.19: 16 Ki).
_MOE_CHUNK = 16384
#: Multiprocessors of a card whose number is not known: of an RTX 4090; it moves a buffer of one row each.
_PROCESSORS = 128
#: Formats whose linear layers quantize their input to 8 bits: one copy of down_proj's input beside it.
_EIGHT_BIT_INPUTS = ("w8a8", "fp8", "mxfp8")
#: A start that compiles the model measures its kernels on full-size inputs, the embedding table among them
#: (config/compilation.py 0.12.0:838 combo_kernels, benchmark_combo_kernel; from torch 2.9 on): the peak is at least
#: one more copy of the table. Six public starts took 0 to 0.14 GiB more than it: Qwen3-8B 1.18 and 1.30 GiB for
#: 1.159, Qwen2.5-0.5B 0.25 for 0.254, Qwen2.5-7B 1.12 for 1.015, Llama-3.1-8B 1.07 for 0.98, 0.98 for 0.98.
#: And one pool was 4.34 GiB cold, 5.47 warm: Qwen3-8B AWQ with EAGLE-3, 0.31.0 (found after the rule was made).
_COLD_SINCE, _COLD_OVER = (0, 12, 0), 144 * MIB
#: The forward of one public start in float32 took this much more (Llama-3.1-8B, 0.19, H100: 2.27 GiB for 1.87).
_FLOAT32 = 410 * MIB
#: What the printed activations of the public rows are off by where the sampler or a plain forward is the peak.
_OFF = 25 * MIB


class Activation(NamedTuple):
    """The peak as an estimate, and what it is made of.

    runner, sampler: which were taken.  encoder: what the dummy batch holds.  kept: bytes of the peak that stay
    allocated after the run.  gap: what a start that compiles takes more, where it is not said whether this one does.
    """

    estimate: Estimate
    runner: str
    sampler: str
    encoder: Held
    kept: int
    gap: int


def activation(
    model: Model,
    rank: Model,
    form: Format,
    machine: Machine,
    settings: ProfileSettings,
    taken: Steps,
    version: Version,
    *,
    last: bool = True,
    first: bool = True,
) -> Activation:
    """Peak of the profile run on one rank; `last` and `first`: whether its pipeline stage samples, or encodes."""
    wide = widths(model, rank, settings.tp)
    width = 4 if model_dtype(model.config, settings.dtype)[0] == "float32" else 2
    encoder = held(model, settings, taken.tokens, width, version) if first else Held(0, 0, "", True)
    work = moe_workspace(wide, form, settings, taken.tokens)
    ahead = forward(wide, form, settings, taken.tokens, width) + work
    if not (first and last):
        ahead += 2 * taken.tokens * wide.hidden * width  # hidden states and residual that go to the next stage
    kind = samplers.runner(model, form, settings, version)
    sampled, gap, name, kept, why = 0, 0, "", 0, ""
    if last:
        peak = _sampler(wide, machine, settings, taken, version, kind, width)
        name, kept, why = peak.name, peak.kept, peak.why
        beside = taken.tokens * wide.hidden * width + 2 * taken.rows * wide.hidden * width
        beside += _CUBLAS_HOPPER if machine.compute_capability and machine.compute_capability[0] == 9 else _CUBLAS
        # up to 0.12 the mixture's workspace is freed with the forward; from 0.13 on it stays (fused_moe.py 0.19.1:1976)
        sampled = peak.bytes + beside + (work if version >= (0, 13, 0) else 0)
    if sampled >= ahead:
        size, words = sampled, f"{name}: {why}, and what is alive beside it"
        low, high = size - _OFF, size + _OFF
    else:
        name, kept = "forward", 0
        size = ahead
        words = f"forward: {taken.tokens:,} tokens x ({wide.dense:,} + 4 x {wide.hidden:,}) x {width} B" + (
            f" + the mixture's workspace of {work:,} B" if work else ""
        )
        low, high = size - _OFF, size + _OFF
    if width == 4:
        high += _FLOAT32
    # a model that takes pictures is compiled without its table: tokens are embedded before it
    table = 0 if takes_media(model, settings) else wide.vocab // settings.tp * wide.hidden * width
    if first and not settings.enforce_eager and version >= _COLD_SINCE and table > size:
        if settings.compile_cache is None:
            gap = table - size
            high = max(high, table + _COLD_OVER)
        elif settings.compile_cache == "cold":
            size, low, high, name, kept = table, table - _OFF, table + _COLD_OVER, "compile", 0
            words = f"compiled at this start: one more copy of the embedding table, {table:,} B"
    size, low, high = (max(0, each) + encoder.bytes for each in (size, low, high))
    if encoder.why:
        words += f"; {encoder.why}"
    if encoder.peak > size:
        name, kept, size = "encoder", 0, encoder.peak
        low, high = size - size // 20, max(high, size + size // 4)
        words = f"the encoder's own forward; {encoder.why}"
    source = f"gpu_model_runner.py profile_run, runner {kind.upper()}"
    return Activation(Estimate("activation", size, low, high, words, source), kind, name, encoder, kept, gap)


def forward(wide: Widths, form: Format, settings: ProfileSettings, tokens: int, width: int) -> int:
    """Peak of the compiled forward: gate, up and their product, and four hidden states, for each token."""
    dense = wide.dense
    copy = tokens * dense // 3 if form.name.startswith(_EIGHT_BIT_INPUTS) else 0
    return tokens * width * (dense + 4 * wide.hidden) + copy


def moe_workspace(wide: Widths, form: Format, settings: ProfileSettings, tokens: int) -> int:
    """The Triton mixture's two workspaces (fused_moe.py): expert inputs and outputs for every expert of a token."""
    if not wide.experts or form.name.startswith("mxfp4"):
        return 0
    rows = min(tokens * settings.dp, _MOE_CHUNK) * wide.experts  # every replica's tokens are gathered
    return rows * (max(wide.inner, wide.hidden) + max(2 * wide.inner, wide.hidden)) * 2


def _sampler(
    wide: Widths,
    machine: Machine,
    settings: ProfileSettings,
    taken: Steps,
    version: Version,
    kind: str,
    width: int,
) -> samplers.Peak:
    if kind == "v2":
        return samplers.peak_v2(taken.rows, wide.vocab, width, version)
    name = samplers.sampler(settings, version, machine.compute_capability)
    processors, drafts = machine.sm_count or _PROCESSORS, settings.speculative is not None
    return samplers.peak_v1(taken.rows, wide.vocab, width, name, version, processors, drafts=drafts)
