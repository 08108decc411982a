"""What a start takes where nothing is said: utilization, sequences and tokens a step, the device's total.

vLLM: engine/arg_utils.py get_batch_defaults and _set_default_max_num_seqs_and_batched_tokens_args (0.8.5 to 0.32.0).
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.vllm.profile.estimate import Estimate
from membudget.engines.vllm.profile.settings import ProfileError, ProfileSettings
from membudget.engines.vllm.versions import Rules
from membudget.machines import Machine
from membudget.model import Model
from membudget.model.length import longest
from membudget.units import GIB, MIB, gib

#: A device's own report of itself is this much less than nvidia-smi's: 256 MiB (T4) to 768 MiB (A100 80 GB) on the
#: eleven cards of machines.yaml that have both numbers; an RTX 3050 of 6 GiB came out at 70 MiB (fresh row F13).
_DRIVER_LEAST, _DRIVER_MOST = 64 * MIB, 768 * MIB
#: How far one card's report was seen to move, of its size: 79.18 to 79.33 GiB of an H100, the widest range of a card
#: of 40 GiB and more (machines.yaml); it is taken for cards of which one report is known.
_MOVES = 0.002
#: A device of 70 GiB and more takes larger steps, but an A100 does not (from 0.9.2 on; 0.8.5 knows no exception).
_LARGE = 70 * GIB
#: One of 160 GiB and more takes 16,384 tokens for a server too (0.28.0 on).
_LARGEST = 160 * GIB
#: What a usage context without its own defaults takes (config/scheduler.py DEFAULT_MAX_NUM_SEQS,
#: DEFAULT_MAX_NUM_BATCHED_TOKENS; arg_utils.py looks the context up in a table and falls back on these).
_ENGINE_SEQUENCES, _ENGINE_TOKENS = 128, 2048


class Steps(NamedTuple):
    """max_num_seqs and max_num_batched_tokens, as given or as the version takes them, and why."""

    sequences: int
    tokens: int
    why: str

    @property
    def rows(self) -> int:
        """Sequences of the profile run: no more than tokens (gpu_model_runner.py _dummy_run)."""
        return min(self.sequences, self.tokens)


def utilization(settings: ProfileSettings, rules: Rules) -> float:
    """gpu_memory_utilization: 0.9, from 0.20.0 on 0.92.  Raises `ProfileError` outside (0, 1]."""
    share = rules.utilization / 100 if settings.utilization is None else settings.utilization
    if not 0 < share <= 1:
        raise ProfileError(f"gpu_memory_utilization {share:g}: more than 0 and at most 1")
    return share


def steps(model: Model, machine: Machine, settings: ProfileSettings, rules: Rules) -> Steps:
    """max_num_seqs and max_num_batched_tokens of this start."""
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        given = getattr(settings, name)
        if given is not None and given < 1:
            raise ProfileError(f"{name} {given}: 1 or more")
    if settings.usage not in ("server", "llm", "engine"):
        raise ProfileError(f"usage {settings.usage!r}: server, llm or engine")
    server = settings.usage == "server"
    memory = device_memory(machine)
    if settings.usage == "engine":
        sequences, tokens, device = _ENGINE_SEQUENCES, _ENGINE_TOKENS, "a program's own engine"
    elif memory >= _LARGEST and rules.version >= (0, 28, 0):
        sequences, tokens, device = 1024, 16384, f"a device of {gib(_LARGEST, 0)} or more"
    elif memory >= _LARGE and not ("a100" in machine.title.lower() and rules.version >= (0, 9, 0)):
        sequences, tokens, device = 1024, 8192 if server else 16384, f"a device of {gib(_LARGE, 0)} or more"
    else:
        sequences, tokens, device = 256, 2048 if server else 8192, "other devices"
    doubled = 2 if settings.performance_mode == "throughput" and rules.version >= (0, 17, 0) else 1
    sequences = settings.max_num_seqs or sequences * doubled
    length = settings.max_model_len or longest(model.config, rules.version).tokens
    if settings.max_num_batched_tokens:
        tokens = settings.max_num_batched_tokens
    else:
        tokens *= doubled
        if not settings.chunked_prefill and length:
            tokens = max(tokens, length)
        if rules.version >= (0, 12, 0) and length:
            tokens = min(tokens, sequences * length)
    if settings.max_num_seqs is None and rules.version >= (0, 10, 0):
        sequences = min(sequences, tokens)
    both = settings.max_num_seqs and settings.max_num_batched_tokens
    taken = "as given" if both else f"the {settings.usage}'s defaults for {device} (engine/arg_utils.py {rules.name})"
    return Steps(sequences, tokens, f"max_num_seqs {sequences:,}, max_num_batched_tokens {tokens:,}: {taken}")


def device_memory(machine: Machine) -> int:
    """What NVML says a device has; 0 where memory is shared with the system.

    NVML knows no memory of a GB10: vLLM catches the error and goes on with 0 (arg_utils.py 0.27.1:2534,
    platforms/cuda.py get_device_total_memory), so such a device takes the small defaults although it has 120 GiB.
    """
    return 0 if machine.unified else machine.memory


def total(machine: Machine, settings: ProfileSettings) -> Estimate:
    """What torch reports as the device's memory, and how far that was seen to move with the driver."""
    if settings.total is not None:
        return Estimate("total", settings.total, settings.total, settings.total, "as given", "given")
    seen = machine.cuda_total
    if seen is None:
        size = machine.memory - (_DRIVER_LEAST + _DRIVER_MOST) // 2
        low, high = machine.memory - _DRIVER_MOST, machine.memory - _DRIVER_LEAST
        if machine.unified or machine.platform != "cuda":
            size = low = high = machine.memory
        return Estimate("total", size, low, high, f"{machine.name}: no report by CUDA is known", "machines.yaml")
    moves = int(seen * _MOVES) if not machine.unified else 0
    low = machine.cuda_total_low or seen - moves
    high = machine.cuda_total_high or seen + moves
    return Estimate("total", seen, min(low, seen), max(high, seen), f"CUDA's total of {machine.name}", "machines.yaml")
