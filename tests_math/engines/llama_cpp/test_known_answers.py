"""What llama.cpp's library says of published models of full size, by `plan`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from membudget import formats
from membudget.budgets.budget import Budget, unfiled
from membudget.budgets.settings import settings_of
from membudget.engines.base import Answer
from membudget.engines.llama_cpp.settings import SettingsError
from membudget.machines import Machine
from membudget.model import Model
from membudget.planning.ledger import predict

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
MIB = 2**20
LLAMA, GEMMA, LITE = "meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V2-Lite"


def asked(model: Model, form: str, ctx: int, users: int, options: dict[str, Any]) -> Answer:
    """The answer of `plan` on a machine of 1 TiB; with no device all buffers are on the host, as the library says."""
    machine = Machine("drawn", 2**40, 2**40, True, 10**11, platform="cpu")
    left = {name: value for name, value in options.items() if name != "ubatch_size"}
    engine = replace(settings_of("llama_cpp", options.get("ubatch_size")), options=left)
    budget: Budget = unfiled(model, formats.get(form), "fp16", ctx, users, machine, engine)
    return predict(budget).answer


def parts(answer: Answer) -> dict[str, float]:
    """MiB by part of the caches and the buffers."""
    return {line.part: line.bytes / MIB for line in answer.lines if line.bucket in ("kv_cache", "activations")}


#: Llama.cpp v0.4.0's own library about files of full size: a model, tokens of each user, users, options, MiB by part.
LIBRARY: list[tuple[str, int, int, dict[str, Any], dict[str, float]]] = [
    (LLAMA, 8192, 1, {"flash_attn": "off"}, {"full": 1024.00, "compute": 572.01}),
    (LLAMA, 8192, 1, {}, {"full": 1024.00, "compute": 266.50}),
    (LLAMA, 8192, 4, {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "ubatch_size": 2048},
     {"full": 2176.00, "compute": 1098.01}),
    (GEMMA, 8192, 4, {}, {"full": 2560.00, "window": 2496.00, "compute": 533.13}),
    (GEMMA, 131_072, 1, {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "ubatch_size": 2048},
     {"full": 5440.00, "window": 663.00, "compute": 2132.51}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ctx", "users", "options", "mib"), LIBRARY)
def test_what_the_library_says(
    model: Get, name: str, ctx: int, users: int, options: dict[str, Any], mib: dict[str, float]
) -> None:
    """Cells exactly, the graph's buffer to the two decimals that are printed."""
    found = parts(asked(model(name), "q4_k_m", ctx, users, options))
    assert {part: round(found[part], 2) for part in mib} == mib


def test_unlike_cache_types_of_mla(model: Get) -> None:
    """The library: "model does not support different K (q8_0) and V (f16) cache types"; one type for both it takes."""
    with pytest.raises(SettingsError, match="cache_type_k q8_0 and cache_type_v f16 differ"):
        asked(model(LITE), "q4_k_m", 8192, 1, {"cache_type_k": "q8_0", "cache_type_v": "f16"})
    both = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    # 27 layers x 8,192 cells x (512 + 64) columns in blocks of 32 of 34 bytes
    assert parts(asked(model(LITE), "q4_k_m", 8192, 1, both))["full"] * MIB == 27 * 8192 * 576 // 32 * 34


def test_the_models_own_length(run: Callable[..., tuple[int, str, str]]) -> None:
    """``-c 0`` is the length that the model is trained for, shared by the slots as any other."""
    words = ("--engine", "llama_cpp", "--machine", "rtx-3090", "--format", "q4_k_m", "--command", "-c", "0")
    assert "-c 131072 -np 1 " in run("plan", LLAMA, *words)[1]
    assert "-c 131072 -np 4 " in run("plan", LLAMA, *words, "-np", "4")[1]


def test_a_draft_model_is_a_file(run: Callable[..., tuple[int, str, str]]) -> None:
    """llama-server reads files: a drafter that is named by its id is one in the target's format."""
    words = ("--engine", "llama_cpp", "--machine", "rtx-3090", "--format", "q4_k_m", "--ctx", "8k", "--command")
    _, out, _ = run("plan", LLAMA, *words, "-md", "meta-llama/Llama-3.2-1B", "--spec-type", "draft-simple")
    assert "--model-draft Llama-3.2-1B-q4_k_m.gguf" in out.replace("\\\n", "")
