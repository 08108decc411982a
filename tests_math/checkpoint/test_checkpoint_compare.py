"""A stored checkpoint against its config's inventory: what is missing, extra, unused, packed or laid out otherwise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.checkpoint import by_role, compare, read_path
from membudget.checkpoint.roles import canonical, module
from membudget.checkpoint.stored_format import AsStored
from membudget.formats import get, of_config
from membudget.model import ConfigError, Model, build
from tests_math.checkpoint.checkpoint_files import BITS, stored, write_safetensors

pytestmark = pytest.mark.suite

Get = Callable[[str], Model]
Raw = Callable[[str], dict[str, Any]]

#: Shrinks a real config so that its checkpoint is small but keeps its structure.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}


def differences(tmp_path: Path, tensors: dict[str, Any], model: Model, form: str | None = None) -> Any:
    """Write the tensors as a checkpoint and compare."""
    checkpoint = read_path(str(write_safetensors(tmp_path / "model.safetensors", tensors)))
    return compare(checkpoint, model, get(form) if form else None)


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B",
        "Qwen/Qwen2.5-7B",
        "Qwen/Qwen3-30B-A3B",
        "mistralai/Mixtral-8x7B-v0.1",
        "google/gemma-2-2b",
        "openai/gpt-oss-20b",
        "deepseek-ai/DeepSeek-V2-Lite",
        "microsoft/phi-4",
    ],
)
def test_own_inventory_is_no_difference(name: str, model: Get, tmp_path: Path) -> None:
    """A checkpoint of exactly the inventory: nothing missing, extra or wrong, and roles sum to its bytes."""
    wanted = model(name)
    checkpoint = read_path(str(write_safetensors(tmp_path / "m.safetensors", stored(wanted))))
    found = compare(checkpoint, wanted)
    assert found.ok
    assert not found.unused
    assert not found.regrouped
    roles = by_role(checkpoint, wanted)
    assert sum(roles.values()) == checkpoint.nbytes
    counted = {role: 2 * elements for role, elements in wanted.count.by_part.items()}
    assert {role: size for role, size in roles.items() if role in counted} == counted


def test_missing_extra_and_wrong_shape(tmp_path: Path) -> None:
    """Each kind of difference is named with its tensor and its shapes."""
    model = build(LLAMA)
    tensors = stored(model)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"] = ("BF16", (64, 32))
    tensors["model.surprise.weight"] = ("F32", (3,))
    found = differences(tmp_path, tensors, model)
    assert not found.ok
    assert [item.name for item in found.missing] == ["model.layers.1.mlp.up_proj.weight"]
    assert [(item.name, item.expected, item.found) for item in found.wrong_shape] == [
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), (64, 32))
    ]
    assert [entry.name for entry in found.extra] == ["model.surprise.weight"]


@pytest.mark.parametrize(
    ("shape", "same"),
    [((1, 64), True), ((64,), True), ((64, 1), True), ((1, 64, 1), True), ((2, 64), False), ((64, 2), False),
     ((1, 63), False), ((8, 8), False)],
)  # fmt: skip
def test_extents_of_one_are_no_shape(shape: tuple[int, ...], same: bool, tmp_path: Path) -> None:
    """A shared expert's gate is one row, stored as (1, 64), (64,) or (64, 1); nothing else is that row."""
    config = {**LLAMA, "model_type": "qwen2_moe", "num_experts": 2, "num_experts_per_tok": 1,
              "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}  # fmt: skip
    wanted = build(config, "gate")
    tensors = stored(wanted)
    name = "model.layers.1.mlp.shared_expert_gate.weight"
    tensors[name] = (tensors[name][0], shape)
    found = differences(tmp_path, tensors, wanted)
    assert [item.name for item in found.wrong_shape] == ([] if same else [name])


def test_a_mixture_as_stored(tmp_path: Path) -> None:
    """Bits of the layers, what a token reads and the files in words, by hand for two experts of which one is read."""
    config = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 1,
              "moe_intermediate_size": 32, "head_dim": 16}  # fmt: skip
    wanted = build(config, "mixture")
    form = AsStored(read_path(str(write_safetensors(tmp_path / "m.safetensors", stored(wanted)))), wanted)
    weights = form.weigh(wanted)
    # a layer: q and o of 64 x 64, k and v of 64 x 32, a router of 4 x 64, four experts of 3 x 64 x 32
    experts = 2 * 4 * 3 * 64 * 32
    layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 4 * 64) + experts
    norms = 2 * (2 * 64 + 2 * 16) + 64
    assert weights.layer_bits == (2 * layers, layers)
    assert weights.bits_per_layer_weight == 16
    assert weights.total == 2 * (layers + norms + 2 * 256 * 64)
    # one of four experts, and one row of the embedding
    assert weights.active == weights.total - 2 * experts * 3 // 4 - 2 * 255 * 64
    assert weights.why == f"{len(stored(wanted)):,} tensors in 1 file: {weights.total:,} B"
    assert form.notes() == [f"weights by the headers of {tmp_path / 'm.safetensors'}"]
    assert form.weigh(wanted, total="checkpoint").total == weights.total


def test_a_file_that_is_not_what_the_config_says(tmp_path: Path) -> None:
    """A missing norm, a norm of another size and a tensor that nobody knows are in the note, each with its number."""
    wanted = build(LLAMA, "llama")
    tensors = stored(wanted)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.input_layernorm.weight"] = ("BF16", (63,))
    tensors["model.layers.0.strange"] = ("BF16", (5,))
    form = AsStored(read_path(str(write_safetensors(tmp_path / "m.safetensors", tensors))), wanted)
    (_, note) = form.notes()
    words = "1 missing, 1 unexplained, 1 of another shape"
    assert note == f"the files are not what the config says: tensors {words}; see `membudget count`"


def test_stored_head_of_a_tied_model(tmp_path: Path) -> None:
    """Qwen3-0.6B and 1.7B store lm_head though it is tied: unused, with its bytes."""
    model = build({**LLAMA, "tie_word_embeddings": True})
    found = differences(tmp_path, {**stored(model), "lm_head.weight": ("BF16", (256, 64))}, model)
    assert found.ok
    assert [entry.name for entry in found.unused["tied_head"]] == ["lm_head.weight"]
    assert found.unused_bytes == 2 * 256 * 64


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.2.mlp.up_proj.weight", "mtp"),
        ("model.layers.2.eh_proj.weight", "mtp"),
        ("mtp.layers.0.self_attn.q_proj.weight", "mtp"),
        ("model.mtp.fc.weight", "mtp"),
        ("visual.blocks.0.attn.qkv.weight", "vision"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("vision_tower.vision_model.encoder.layers.40.mlp.fc1.weight", "vision"),
        ("model.vision_tower.encoder.layers.40.self_attn.q_proj.weight", "vision"),
        ("multi_modal_projector.linear_1.weight", "vision"),
        ("audio_tower.layers.9.fc1.weight", "audio"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "rotary"),
        ("model.layers.0.self_attn.k_proj.k_scale", "kv_scale"),
        ("model.layers.0.self_attn.attn.k_scale", "kv_scale"),
        ("transformer.h.0.attn.masked_bias", "mask"),
    ],
)
def test_stored_beside_the_text_model(name: str, kind: str, tmp_path: Path) -> None:
    """Prediction layers, towers, rotary tables, cache scales and masks are named as such."""
    model = build(LLAMA)
    found = differences(tmp_path, {**stored(model), name: ("F32", (8,))}, model)
    assert found.ok
    assert [entry.name for entry in found.unused[kind]] == [name]


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model.", "language_model.model."])
def test_wrapper_prefixes(prefix: str, tmp_path: Path) -> None:
    """A multimodal checkpoint puts a prefix before the text model's names."""
    model = build(LLAMA)
    renamed = {
        (prefix + name.removeprefix("model.")) if name.startswith("model.") else "language_model." + name: item
        for name, item in stored(model).items()
    }
    assert differences(tmp_path, renamed, model).ok


PACKED = {
    "awq": [("qweight", "I32"), ("qzeros", "I32"), ("scales", "F16")],
    "gptq": [("qweight", "I32"), ("qzeros", "I32"), ("scales", "F16"), ("g_idx", "I32")],
    "compressed-tensors": [("weight_packed", "I32"), ("weight_scale", "BF16"), ("weight_shape", "I64")],
    "fp8": [("weight", "F8_E4M3"), ("weight_scale", "F32"), ("input_scale", "F32")],
    "fp8 block": [("weight", "F8_E4M3"), ("weight_scale_inv", "F32")],
    "nvfp4": [("weight", "U8"), ("weight_scale", "F8_E4M3"), ("weight_scale_2", "F32"), ("input_scale", "F32")],
    "bitsandbytes": [("weight", "U8"), ("weight.absmax", "U8"), ("weight.quant_map", "F32"),
                     ("weight.nested_absmax", "F32"), ("weight.quant_state.bitsandbytes__nf4", "U8")],
    "int8": [("weight", "I8"), ("SCB", "F32"), ("weight_format", "U8")],
    "exl3": [("trellis", "I16"), ("suh", "F16"), ("svh", "F16")],
    "hqq": [("W_q", "U8"), ("scale", "BF16"), ("zero", "BF16"), ("meta", "F32")],
}  # fmt: skip
BITS["I16"] = 16


@pytest.mark.parametrize("scheme", PACKED)
def test_packed_weights_count_as_present(scheme: str, tmp_path: Path) -> None:
    """What each quantizer stores for a weight is that weight, with its role, whatever the packed shape."""
    model = build(LLAMA)
    tensors: dict[str, Any] = {}
    packed = 0
    for name, (dtype, shape) in stored(model).items():
        stem = name.removesuffix(".weight")
        if "_proj" in name:
            same = scheme in ("fp8", "fp8 block")
            tensors |= {
                f"{stem}.{part}": (kind, shape if same and part == "weight" else (4,)) for part, kind in PACKED[scheme]
            }
            packed += 1
        else:
            tensors[name] = (dtype, shape)
    checkpoint = read_path(str(write_safetensors(tmp_path / "m.safetensors", tensors)))
    found = compare(checkpoint, model)
    assert found.ok, (found.missing, found.extra)
    roles = by_role(checkpoint, model)
    assert set(roles) == {"embed", "attn", "mlp", "norms", "lm_head"}
    assert roles["embed"] == roles["lm_head"] == 2 * 256 * 64
    assert packed == 14


def test_packed_weights_with_their_format(model: Get, tmp_path: Path) -> None:
    """With the format every packed tensor's name and shape is compared: AWQ Qwen2.5-7B, exactly."""
    qwen = model("Qwen/Qwen2.5-7B")
    form = get("awq")
    tensors = {
        item.name: (item.dtype, item.shape)
        for tensor in qwen.tensors
        for whole in form.stored(tensor, qwen)
        for item in whole.expand()
    }
    checkpoint = read_path(str(write_safetensors(tmp_path / "m.safetensors", tensors)))
    assert compare(checkpoint, qwen, form).ok
    assert checkpoint.nbytes == form.weigh(qwen).total
    # The file holds 1.9 B elements; the model has 7.6 B parameters all the same.
    assert checkpoint.elements < 2_100_000_000 < qwen.count.params
    name = "model.layers.3.mlp.up_proj.qzeros"
    tensors[name] = ("I32", (1, 1))
    other = read_path(str(write_safetensors(tmp_path / "other.safetensors", tensors)))
    assert [item.name for item in compare(other, qwen, form).wrong_shape] == [name]


def test_quant_state_has_no_fixed_length(tmp_path: Path) -> None:
    """bitsandbytes stores JSON text beside a weight: 170 or 171 bytes, as a float prints; both are right."""
    model = build({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True,
                   "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}})  # fmt: skip
    form = of_config(model.config)
    tensors: dict[str, Any] = {}
    for tensor in model.tensors:
        for whole in form.stored(tensor, model):
            tensors |= {item.name: (item.dtype, item.shape) for item in whole.expand()}
    states = [name for name in tensors if ".quant_state." in name]
    assert states
    tensors[states[0]] = ("U8", (tensors[states[0]][1][0] - 1,))
    checkpoint = read_path(str(write_safetensors(tmp_path / "m.safetensors", tensors)))
    assert compare(checkpoint, model, form).ok


def test_fused_and_stacked_layouts(tmp_path: Path) -> None:
    """Fused qkv and gate_up, and stacked experts, hold the same elements: regrouped, not missing."""
    raw = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    raw |= {"moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": []}
    model = build(raw)
    tensors = {name: item for name, item in stored(model).items() if ".experts." not in name and "_proj" not in name}
    for layer in range(2):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "self_attn.qkv_proj.weight": ("BF16", (128, 64)),
            at + "self_attn.o_proj.weight": ("BF16", (64, 64)),
            at + "mlp.experts.gate_up_proj": ("BF16", (4, 64, 64)),
            at + "mlp.experts.down_proj": ("BF16", (4, 64, 32)),
        }
    found = differences(tmp_path, tensors, model)
    assert found.ok
    assert {(group.layer, group.role) for group in found.regrouped} == {
        (layer, role) for layer in range(2) for role in ("attn", "mlp.experts")
    }
    tensors["model.layers.1.mlp.experts.down_proj"] = ("BF16", (4, 64, 31))
    assert not differences(tmp_path, tensors, model).ok


def deepseek_v3(raw_config: Raw) -> Model:
    """DeepSeek-V3 cut to 5 layers, of which 2 have experts, and 8 experts."""
    raw = {**raw_config("deepseek-ai/DeepSeek-V3"), "num_hidden_layers": 5, "n_routed_experts": 8}
    return build(raw)


def test_prediction_head_of_deepseek(raw_config: Raw, tmp_path: Path) -> None:
    """DeepSeek-V3's last layer is in the inventory as stored beside the parameters: listed as unused, or not missed."""
    deepseek = deepseek_v3(raw_config)
    full = stored(deepseek)
    head = {name for name in full if name.startswith("model.layers.5.")}
    assert head
    found = differences(tmp_path, full, deepseek)
    assert found.ok
    assert {entry.name for entry in found.unused["mtp"]} == head
    without = differences(tmp_path, {name: full[name] for name in full if name not in head}, deepseek)
    assert without.ok
    assert not without.unused


def test_router_bias_may_be_missing(raw_config: Raw, tmp_path: Path) -> None:
    """What published files store beside the parameters is not missed where it is absent."""
    deepseek = deepseek_v3(raw_config)
    full = stored(deepseek)
    without = {name: item for name, item in full.items() if "e_score_correction_bias" not in name}
    # 2 layers of experts and that of the prediction head
    assert len(full) - len(without) == 3
    assert differences(tmp_path, without, deepseek).ok


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("a.q_proj.weight", "a.q_proj"),
        ("a.q_proj.bias", "a.q_proj"),
        ("a.q_proj.weight.absmax", "a.q_proj"),
        ("a.q_proj.weight.quant_state.bitsandbytes__nf4", "a.q_proj"),
        ("a.q_proj.weight_scale_inv", "a.q_proj"),
        ("a.experts.gate_up_proj_blocks", "a.experts.gate_up_proj"),
        ("a.experts.gate_up_proj_scales", "a.experts.gate_up_proj"),
        ("weight", "weight"),
    ],
)
def test_module_of_a_stored_name(name: str, stem: str) -> None:
    """The module that a stored tensor belongs to."""
    assert module(name) == stem


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("language_model.model.layers.0.x", "layers.0.x"),
        ("model.language_model.layers.0.x", "layers.0.x"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.visual.blocks.0.x", "model.visual.blocks.0.x"),
        ("transformer.h.0.x", "h.0.x"),
    ],
)
def test_canonical_names(name: str, plain: str) -> None:
    """Prefixes of wrappers go, those of towers stay."""
    assert canonical(name) == plain


@pytest.mark.transformers
@pytest.mark.parametrize(
    "kind", ["llama", "qwen2", "qwen3", "gemma2", "mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"]
)
def test_real_sharded_checkpoint(kind: str, tmp_path: Path) -> None:
    """A tiny random model saved by transformers in several shards: config and header agree, to the byte."""
    transformers = pytest.importorskip("transformers", reason="transformers is in the [transformers] extra")
    torch = pytest.importorskip("torch", reason="torch is in the [transformers] extra")
    small: dict[str, Any] = {key: value for key, value in LLAMA.items() if key != "model_type"}
    small |= {"head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0}
    if kind in ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"):
        small |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
        small["n_routed_experts" if kind == "deepseek_v3" else "num_local_experts"] = 4
        small |= {"num_experts": 4} if kind == "qwen3_moe" else {}
    if kind == "deepseek_v3":
        del small["head_dim"]
        small |= {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
        small |= {"v_head_dim": 16, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
        small |= {"num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(kind, **small)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    ours = build(str(tmp_path))
    checkpoint = read_path(str(tmp_path))
    assert len(checkpoint.files) > 1
    assert checkpoint.total_size_difference == 0
    found = compare(checkpoint, ours)
    assert found.ok, (found.missing[:3], found.extra[:3], found.wrong_shape[:3])
    assert ours.count.params == sum(parameter.numel() for parameter in model.parameters())
    unused = sum(entry.elements for entries in found.unused.values() for entry in entries)
    buffers = sum(t.elements for t in ours.tensors if t.part != "params" and t.role != "mtp")
    assert checkpoint.elements - unused in (ours.count.params, ours.count.params + buffers)
    assert sum(by_role(checkpoint, ours).values()) == checkpoint.nbytes


def test_every_shipped_config_compares_with_itself(raw_config: Raw, tmp_path: Path) -> None:
    """For every shipped config that builds: its own inventory is no difference, names are unique."""
    from membudget.sources.locate import fixture_ids

    tried = 0
    for name in fixture_ids():
        try:
            model = build(raw_config(name), name)
        except ConfigError:
            continue
        tensors = stored(model)
        if len(tensors) > 1200:
            continue
        checkpoint = read_path(str(write_safetensors(tmp_path / "m.safetensors", tensors)))
        found = compare(checkpoint, model)
        assert not found.missing, (name, found.missing[:3])
        assert not found.extra, (name, found.extra[:3])
        assert not found.wrong_shape, (name, found.wrong_shape[:3])
        tried += 1
    assert tried > 30


def test_functions_of_the_package_stay_functions() -> None:
    """The package's functions stay functions, whatever is imported beside them."""
    code = (
        "import membudget.checkpoint as c, membudget.checkpoint.stored_format, membudget.checkpoint.differences\n"
        "import inspect; print([name for name in c.__all__ if inspect.ismodule(getattr(c, name))])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"
