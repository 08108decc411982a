"""Groups and pages by hand, each rule as vLLM's v1/core/kv_cache_utils.py and kv_cache_interface.py have it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from membudget.engines.vllm.pool import specs
from membudget.engines.vllm.pool.groups import Group, GroupError, group
from membudget.engines.vllm.pool.plan import plan_pool
from membudget.engines.vllm.pool.result import PoolRequest
from membudget.engines.vllm.pool.specs import Bucket, Spec
from membudget.engines.vllm.pool.states import Shapes
from membudget.engines.vllm.versions import rules
from membudget.model import Model

pytestmark = pytest.mark.math

NEW = rules("0.32.0")
GIB = 2**30
#: 2 KiB a token in full layers, 1 KiB in sliding ones of half the heads.
FULL = Spec("full", 16, 32_768, 2048, shape=(8, 128))
SLIDING = Spec("sliding", 16, 32_768, 2048, window=512, shape=(8, 128))
NARROW = Spec("sliding", 16, 16_384, 1024, window=512, shape=(4, 128))
MAMBA = Spec("mamba", 16, 32_768, 0, fixed=1, shape=("mamba", "mamba2"))
MLA = Spec("mla", 64, 73_728, 1152)


def test_a_window_beside_full_layers_is_full_without_the_hybrid_manager() -> None:
    """`unify_hybrid_kv_cache_specs`: the same heads make one spec, without a window; layers in the model's order."""
    why: list[str] = []
    (one,) = group([Bucket(FULL, [1, 3]), Bucket(SLIDING, [0, 2])], NEW, False, why)
    assert one.buckets == (Bucket(FULL, [0, 1, 2, 3]),)
    assert (one.mixed, one.size, one.width()) == (False, 4, 4 * 32_768)
    assert "windows count as full attention" in why[0]


def test_narrow_windows_keep_their_page_when_they_are_full() -> None:
    """Half the heads: still 16 tokens a block and half a page, in one group of two page sizes."""
    (one,) = group([Bucket(FULL, [0]), Bucket(NARROW, [1, 2])], NEW, False, [])
    assert one.buckets[1] == Bucket(Spec("full", 16, 16_384, 1024, shape=(4, 128)), [1, 2])
    assert (one.mixed, one.spec, one.width()) == (True, FULL, 32_768 + 2 * 16_384)
    assert one.width(range(2)) == 32_768 + 16_384


def test_a_window_alone_stays_a_window() -> None:
    """Without a full layer there is nothing to be alike with."""
    (one,) = group([Bucket(SLIDING, [0, 1])], NEW, False, [])
    assert one.spec == SLIDING


def test_kinds_that_cannot_be_one_are_refused() -> None:
    """`Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type`."""
    with pytest.raises(GroupError, match="layers of different kinds and one group only"):
        group([Bucket(FULL, [0]), Bucket(MAMBA, [1])], NEW, False, [])
    assert len(group([Bucket(FULL, [0]), Bucket(MAMBA, [1])], NEW, True, [])) == 2


def test_pages_that_do_not_divide_are_refused() -> None:
    """An MLA page of 73,728 B and a state that cannot be padded before 0.26."""
    with pytest.raises(GroupError, match="cannot be made 73,728 B"):
        group([Bucket(MLA, [0]), Bucket(MAMBA, [1])], rules("0.20.2"), True, [])


def test_the_widest_layers_are_the_groups_spec() -> None:
    """`max(spec.page_size_bytes)`, wherever it stands."""
    wide, thin = Bucket(FULL, [0]), Bucket(FULL._replace(page=1024, unit=64), [1])
    assert Group((thin, wide)).spec == Group((wide, thin)).spec == FULL


@pytest.mark.parametrize(("kind", "mode", "draft", "blocks"), [
    ("mamba2", "align", 0, 3), ("mamba2", "align", 3, 6), ("mamba1", "align", 0, 2), ("mamba1", "align", 3, 5),
    ("mamba2", "none", 0, 1), ("mamba2", "none", 3, 4),
])  # fmt: skip
def test_states_of_a_request(model: Callable[[str], Model], kind: str, mode: str, draft: int, blocks: int) -> None:
    """MambaSpec.max_memory_usage_bytes: 2 and the draft's with align, one more where Mamba-2 keeps a checkpoint."""
    assert NEW.checkpoint
    config = model("meta-llama/Llama-3.1-8B").config
    setting = specs.Setting(
        NEW, config, "bfloat16", "auto", "cuda", 1, draft, None, None, "auto", "auto", None, None, (9, 0)
    )
    assert specs._mamba_spec(setting, Shapes(kind, 1, 1, None, ""), 1024, 16, mode).fixed == blocks


def test_ranks_of_a_stage_count_by_their_least(model: Callable[[str], Model]) -> None:
    """TP 2 x PP 2, one number a rank: vLLM takes the least of each stage, and of all stages the fewest blocks."""
    llama = model("meta-llama/Llama-3.1-8B")

    def blocks(given: list[int]) -> int:
        return plan_pool(PoolRequest(llama, [size * GIB for size in given], 8192, tp=2, pp=2)).num_blocks

    assert blocks([30, 20, 40, 50]) == blocks([20, 40]) == blocks([20, 20])
    assert blocks([50, 40, 30, 20]) == blocks([40, 20]) == blocks([20, 20])
    assert blocks([40, 40]) == 2 * blocks([20, 20])


@pytest.mark.parametrize(("name", "capability", "version", "asked", "stored"), [
    ("zai-org/GLM-5", (10, 0), "0.32.0", "auto", "fp8_e4m3"), ("zai-org/GLM-5", (9, 0), "0.32.0", "auto", "auto"),
    ("zai-org/GLM-5", (10, 0), "0.31.0", "auto", "auto"), ("zai-org/GLM-5", (9, 0), "0.32.0", "fp8", "fp8_ds_mla"),
    ("deepseek-ai/DeepSeek-V3.2", (10, 0), "0.32.0", "auto", "auto"),
    ("deepseek-ai/DeepSeek-V3.2", (9, 0), "0.32.0", "fp8_ds_mla", "fp8_ds_mla"),
    ("deepseek-ai/DeepSeek-V3.2", (10, 0), "0.32.0", "fp8", "fp8"),
])  # fmt: skip
def test_the_dtype_of_sparse_mla(
    model: Callable[[str], Model], name: str, capability: tuple[int, int], version: str, asked: str, stored: str
) -> None:
    """mla/flashmla_sparse.py: fp8 is stored as fp8_ds_mla, but on SM 10; GLM is fp8 there from 0.32."""
    config = model(name).config
    setting = specs.Setting(
        rules(version), config, "bfloat16", asked, "cuda", 1, 0, None, None, "auto", "auto", None, None, capability
    )
    assert specs._sparse_dtype(setting, []).kv_dtype == stored
