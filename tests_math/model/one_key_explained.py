"""Differences between our counts and transformers' classes when one key changes, each with its reason.

A difference that is not here is a bug, ours or theirs.  Versions are by their major number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests_math.model.one_key_reference import Difference

#: Refusals that are right whatever the type: the class builds tensors that no forward pass can use.
REFUSED: tuple[tuple[str, str], ...] = (
    (r" is 0; allowed", "a size of 0: the class makes empty tensors"),
    (r"num_key_value_heads is [\d,]+; allowed is a (whole )?number", "KV heads that do not divide the query heads"),
    (r"(experts_per_tok(en)?|moe_topk|moe_k|top_k) is [\d,]+; allowed", "more experts a token than there are"),
    (r"not divisible by", "heads that do not divide the hidden size, without a head_dim"),
    (r"has [\d,]+ entries; allowed", "a list of another length than the layers"),
    (r"is (true|false); allowed is a whole number", "a flag where a number belongs"),
    (r"is missing; allowed is a whole number", "null for a size that a layer needs: the cache would have no window"),
    (r"allowed is a multiple of", "a width that its heads do not divide"),
)  # fmt: skip
#: (type or *, key) -> why; for every version.
EVERY: dict[tuple[str, str], str] = {
    ("*", "q_lora_rank"): "0 is read as null: the class builds a rank of 0, through which no query passes",
    ("cohere2_moe", "prefix_dense_intermediate_size"): "0 is read as absent: the class builds an MLP without channels",
    ("nemotron_h", "moe_shared_expert_intermediate_size"): (
        "0 is no shared expert: the class falls back to intermediate_size, by an `or`"
    ),
    ("hy_v3", "num_shared_experts"): (
        "0 is no shared expert, as in vLLM 0.32 (hy_v3.py): the class falls back to intermediate_size, by an `or`"
    ),
    ("opt", "layer_norm_elementwise_affine"): "false is refused: no published checkpoint has norms without weights",
    ("xlstm", "embedding_dim"): "a second size beside hidden_size: the class takes one here, the other there",
    ("xlstm", "num_blocks"): "a second number beside num_hidden_layers: the class takes one here, the other there",
}
#: The same, for 4.x alone.
OLD: dict[tuple[str, str], str] = {
    ("*", "tie_word_embeddings"): (
        "null is false in 4.x and the class's default in 5.x; where false differs, 4.x has a second bias of the head"
        " beside"
    ),
    ("*", "position_embedding_type"): "4.x learns distances with relative_key; 5.x knows no such embeddings",
    ("deepseek_v2", "mlp_bias"): "4.x has a bias in each expert; 5.x stacks the experts without one",
    ("deepseek_v2", "vocab_size"): "the class's default went from 32,000 to 102,400",
    ("ernie4_5_moe", "use_bias"): "4.x has biases in the experts and the head; 5.x in neither",
    ("gemma3n_text", "num_kv_shared_layers"): "4.x keeps key and value projections in layers that read others' keys",
}


def why(one: Difference, newest: bool) -> str:
    """The reason of a difference; "" where there is none."""
    if one.noted:
        return "counted without this key, and named as not read"
    if isinstance(one.ours, str):
        found = next((reason for pattern, reason in REFUSED if re.search(pattern, one.ours)), "")
        if found:
            return found
    tables = (EVERY,) if newest else (EVERY, OLD)
    places = ((one.type, one.key), ("*", one.key))
    return next((table[place] for table in tables for place in places if place in table), "")
