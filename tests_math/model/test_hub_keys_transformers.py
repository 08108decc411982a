"""Keys of hub files that config classes take as other names, or compute layers from: one at a time against them.

The list is what `kwargs.pop` and `kwargs.get` are asked for in transformers 5.24's configuration files.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

from membudget.model import build
from tests_math.model import family_reference as ref
from tests_math.model.random_configs import draw

pytestmark = pytest.mark.transformers

pytest.importorskip("torch", reason="torch is not installed; `pip install membudget[transformers]`")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip(f"transformers {transformers.__version__}: other classes", allow_module_level=True)

KEYS: list[tuple[str, dict[str, Any]]] = [
    ("lfm2", {"block_ff_dim": 160}),
    ("lfm2", {"block_ff_dim": 160, "intermediate_size": 96}),
    ("lfm2", {"full_attn_idxs": [1]}),
    ("lfm2_moe", {"block_ff_dim": 160}),
    ("lfm2_moe", {"full_attn_idxs": [1]}),
    ("kimi_linear", {"first_k_dense_replace": 2}),
    (
        "kimi_linear",
        {
            "linear_attn_config": {
                "num_heads": 2,
                "head_dim": 16,
                "short_conv_kernel_size": 4,
                "kda_layers": [1, 2],
                "full_attn_layers": [3],
            }
        },
    ),
    ("glm_moe_dsa", {"index_topk_pattern": "FSFSFSFSFSFS"}),
    ("glm_moe_dsa", {"num_experts": 3}),
    ("glm_moe_dsa", {"num_experts": 3, "n_routed_experts": 5}),
    ("deepseek_v32", {"num_experts": 3, "n_routed_experts": 5}),
    ("modernbert-decoder", {"global_attn_every_n_layers": 2}),
    ("nemotron_h", {"mamba_n_groups": 2}),
    ("nemotron_h", {"mamba_d_conv": 3}),
    ("nemotron_h", {"mamba_expand": 3}),
    ("nemotron_h", {"mamba_conv_bias": False}),
    ("nemotron_h", {"hybrid_override_pattern": "M*-E"}),
    ("falcon", {"n_embed": 64}),
    ("bloom", {"n_embed": 64}),
    ("axk1", {"first_k_dense_replace": 2}),
    ("axk1", {"moe_layer_freq": 2}),
    ("axk2", {"first_k_dense_replace": 2}),
    ("axk2", {"moe_layer_freq": 2}),
    ("cohere2_moe", {"first_k_dense_replace": 2}),
    ("dots3_note_text", {"first_k_dense_replace": 2}),
    ("dots3_note_text", {"moe_layer_freq": 2}),
    ("dots3_note_text", {"use_dsa": False}),
    ("dots3_note_text", {"use_sliding_window": False}),
    ("deepseek_v4", {"num_hash_layers": 1}),
    ("deepseek_v4", {"compress_ratios": [0, 4, 128, 4, 128, 4, 0, 0, 4, 4, 4, 4]}),
    ("inkling_text", {"dense_mlp_idx": 1}),
    ("inkling_text", {"dense_intermediate_size": 160}),
    ("sarvam_mla", {"head_dim": 24}),
    ("qwen3_next", {"full_attention_interval": 2}),
    ("qwen3_5_text", {"full_attention_interval": 2}),
    ("gemma4_text", {"global_head_dim": 48}),
    ("gemma4_text", {"num_global_key_value_heads": 1}),
    ("mamba", {"intermediate_size": 96}),
    ("mamba2", {"intermediate_size": 96}),
    ("falcon_mamba", {"intermediate_size": 96}),
    ("doge", {"is_moe": True, "num_experts": 20}),
    (
        "hunyuan_v1_moe",
        {
            "moe_topk": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            "moe_intermediate_size": [32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32],
            "num_shared_expert": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        },
    ),
    ("gemma3_text", {"sliding_window_pattern": 2}),
    ("cohere2", {"sliding_window_pattern": 2}),
    ("jamba", {"mamba_expand": 3}),
    ("gpt2", {"n_inner": 100}),
    ("mimo_v2_flash", {"sliding_window_size": 7}),
]


@pytest.mark.parametrize(
    ("model_type", "more"), KEYS, ids=lambda value: value if isinstance(value, str) else "+".join(value)
)
def test_one_key(model_type: str, more: dict[str, Any]) -> None:
    """Two random configs with this key beside: parameters to the one."""
    defaults, under = ref.text_defaults(model_type)
    compared = 0
    for seed in range(2):
        overrides = {**draw(model_type, defaults, random.Random(seed)), **more}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                known = ref.reference(model_type, overrides, under, names=False)
        except ref.refusals():
            continue
        assert build(ref.raw(model_type, overrides, under)).count.params == known.params, overrides
        compared += 1
    if not compared:
        pytest.skip("the class refuses both draws")
