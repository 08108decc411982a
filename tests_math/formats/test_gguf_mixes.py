"""GGUF files: every mix against published files, llama.cpp's own figures and the gguf package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from membudget.formats import FormatError, get
from membudget.formats.ggml import BY_ID, RETIRED, TYPES, by_id
from membudget.formats.gguf import gguf
from membudget.formats.gguf_mix import MIXES
from membudget.formats.gguf_names import named
from membudget.model import Model, build
from tests_math.strategies import llama_configs

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
SIZES = yaml.safe_load((Path(__file__).parents[2] / "fixtures" / "sizes.yaml").read_text(encoding="utf-8"))
FILES = [(repo, mix, size) for repo, entry in SIZES["gguf"].items() for mix, size in entry["files"].items()]

#: What precedes the tensors in each of the published models: metadata, the vocabulary, tensor names.
HEADERS = {
    "Qwen/Qwen3-8B-GGUF@7c41481f": 5_956_384,
    "Qwen/Qwen2.5-1.5B-Instruct-GGUF@91cad511": 5_950_496,
    "Qwen/Qwen2.5-0.5B-Instruct-GGUF@9217f5db": 5_947_744,
    "bartowski/Llama-3.2-1B-Instruct-GGUF@067b946c": 7_831_264,
    "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF": 7_840_928,
    "Qwen/Qwen2.5-Coder-32B-Instruct-GGUF@9d3053fc": 5_978_304,
    "ddh0/Meta-Llama-3-8B-Instruct-GGUF (sizes list)": 7_835_936,
}


def published(repo: str, raw_config: Callable[[str], dict[str, Any]]) -> Model:
    """The model of a published repository, from the shipped config with its shapes."""
    entry = SIZES["gguf"][repo]
    config = dict(raw_config(entry["config"]))
    if entry.get("without_rope_scaling"):
        config.pop("rope_scaling", None)
        config.pop("rope_parameters", None)
    return build(config, repo)


@pytest.mark.parametrize(("repo", "mix", "size"), FILES, ids=[f"{repo.split('/')[1]}-{mix}" for repo, mix, _ in FILES])
def test_published_file(repo: str, mix: str, size: int, raw_config: Callable[[str], dict[str, Any]]) -> None:
    """A published file is its tensors as predicted and one header, the same for all mixes within 512 bytes."""
    entry = SIZES["gguf"][repo]
    form = gguf(mix, mix, imatrix=entry.get("imatrix", False), separate_output=entry.get("separate_output", False))
    header = size - form.weigh(published(repo, raw_config)).total
    assert 0 <= header - HEADERS[repo] <= 512


def test_all_published_files_are_checked() -> None:
    """61 files of 7 models."""
    assert (len(FILES), len(SIZES["gguf"])) == (61, 7)


def test_separate_output_must_be_said(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """Qwen's 0.5B ties its embeddings and its official files store the head all the same: 272 MB no config tells."""
    model = published("Qwen/Qwen2.5-0.5B-Instruct-GGUF@9217f5db", raw_config)
    tied, separate = gguf("F16", "F16"), gguf("F16", "F16", separate_output=True)
    assert separate.weigh(model).total - tied.weigh(model).total == 151_936 * 896 * 2
    assert separate.weigh(model).total == get("gguf-f16-output").weigh(model).total


@pytest.mark.parametrize(("mix", "bits"), SIZES["bits_per_weight"].items())
def test_llama_cpp_readme(mix: str, bits: str, model: Get) -> None:
    """Bits a weight of Llama-3.1-8B as llama.cpp's quantize README prints them, to four decimals."""
    llama = model("meta-llama/Llama-3.1-8B")
    form = gguf(mix, mix)
    # the README counts the RoPE factors with neither side
    size = form.weigh(llama).total - sum(item.total for item in form.extras(llama))
    assert f"{8 * size / llama.count.params:.4f}" == bits


def test_q4_k_m_types_of_llama_8b(model: Get) -> None:
    """Q4_K_M raises attn_v and ffn_down to Q6_K in the first and last eighth and every third layer between."""
    llama, form = model("meta-llama/Llama-3.1-8B"), get("q4_k_m")
    types = {item.name: item.dtype for tensor in llama.tensors for item in form.stored(tensor, llama)}
    raised = [i for i in range(32) if types[f"blk.{i}.ffn_down.weight"] == "Q6_K"]
    assert raised == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert [types[f"blk.{i}.attn_v.weight"] == "Q6_K" for i in raised] == [True] * 16
    assert types["output.weight"] == "Q6_K"
    assert types["token_embd.weight"] == types["blk.0.attn_q.weight"] == "Q4_K"
    assert types["blk.0.attn_norm.weight"] == types["output_norm.weight"] == "F32"


def test_tied_table_takes_the_head_type(model: Get) -> None:
    """Without an output.weight the embedding table is stored as the head would be."""
    llama, form = model("meta-llama/Llama-3.2-1B"), get("Q4_K_M")
    table = form.stored(llama.tensors[0], llama)
    assert [(item.name, item.dtype) for item in table] == [("token_embd.weight", "Q6_K")]


def test_rope_factors_are_stored(model: Get) -> None:
    """Llama-3.1's RoPE scaling becomes a tensor of head_dim / 2 fp32 factors."""
    llama = model("meta-llama/Llama-3.1-8B")
    [factors] = get("q4_k_m").extras(llama)
    assert (factors.name, factors.shape, factors.nbytes) == ("rope_freqs.weight", (64,), 256)
    weights = get("q4_k_m").weigh(llama)
    # 65 norms of 4,096 and the factors are all that is fp32
    assert weights.by_dtype["F32"] == 65 * 4096 * 4 + 256
    assert sum(weights.by_dtype.values()) == sum(weights.by_role.values()) == weights.total


def test_70b_keeps_attn_v_larger(model: Get) -> None:
    """llama.cpp stores a 70B's attn_v in Q5_K where others get Q4_K; Q6_K stays."""
    llama, form = model("meta-llama/Llama-3.1-70B"), get("q4_k_m")
    types = [form.stored(tensor, llama)[0].dtype for tensor in llama.tensors if tensor.name.endswith("v_proj.weight")]
    assert set(types) == {"Q5_K", "Q6_K"}
    small, quarter = model("meta-llama/Llama-3.1-8B"), get("q4_k_m")
    assert {quarter.stored(t, small)[0].dtype for t in small.tensors if "v_proj" in t.name} == {"Q4_K", "Q6_K"}


def test_eight_experts(model: Get) -> None:
    """Models of eight experts keep attn_k and attn_v in Q8_0 and attn_output in Q5_K; experts are one tensor."""
    mixtral, form = model("mistralai/Mixtral-8x7B-v0.1"), get("q4_k_m")
    types = {item.name: item for tensor in mixtral.tensors for item in form.stored(tensor, mixtral)}
    assert types["blk.0.attn_k.weight"].dtype == types["blk.0.attn_v.weight"].dtype == "Q8_0"
    assert types["blk.0.attn_output.weight"].dtype == "Q5_K"
    assert types["blk.0.ffn_gate_inp.weight"].dtype == "F32"
    assert types["blk.5.ffn_up_exps.weight"].shape == (8, 14336, 4096)
    assert types["blk.5.ffn_down_exps.weight"].shape == (8, 4096, 14336)


def kinds(model: Model, mix: str) -> dict[str, str]:
    """The ggml type of every tensor of a file."""
    form = gguf(mix, mix)
    return {item.name: item.dtype for tensor in model.tensors for item in form.stored(tensor, model)}


def test_eight_experts_in_two_bits(model: Get) -> None:
    """The low mixes have a branch of their own: attn_k Q4_K, attn_output Q5_K, and attn_v as four experts say."""
    types = kinds(model("mistralai/Mixtral-8x7B-v0.1"), "IQ2_XS")
    found = (types[f"blk.0.{part}.weight"] for part in ("attn_k", "attn_output", "attn_v", "attn_q"))
    assert tuple(found) == ("Q4_K", "Q5_K", "Q4_K", "IQ2_XS")


def llama(**more: int) -> Model:
    """A small Llama in rows of whole blocks."""
    config = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 300}  # fmt: skip
    return build({**config, **more}, "small")


@pytest.mark.parametrize(
    ("kv_heads", "mix", "attn_v"),
    [
        (4, "Q2_K", "Q3_K"), (2, "Q2_K", "Q3_K"), (1, "Q2_K", "Q4_K"),
        (4, "IQ4_XS", "IQ4_XS"), (2, "IQ4_XS", "IQ4_XS"), (1, "IQ4_XS", "Q5_K"),
    ],
)  # fmt: skip
def test_four_query_heads_a_kv_head(kv_heads: int, mix: str, attn_v: str) -> None:
    """n_gqa() >= 4 raises attn_v: of 4 heads, with one KV head and not with 2 or 4 (llama-quant.cpp)."""
    assert kinds(llama(num_key_value_heads=kv_heads), mix)["blk.1.attn_v.weight"] == attn_v


@pytest.mark.parametrize(
    ("layers", "kv_heads", "attn_v"),
    [(80, 1, "Q5_K"), (80, 2, "Q5_K"), (80, 4, "Q4_K"), (79, 2, "Q4_K"), (81, 2, "Q4_K")],
)
def test_a_70b_has_80_layers_and_grouped_heads(layers: int, kv_heads: int, attn_v: str) -> None:
    """LLM_TYPE_70B is a Llama of 80 layers whose heads are grouped; 65B, which is not, keeps Q4_K."""
    types = kinds(llama(num_hidden_layers=layers, num_key_value_heads=kv_heads), "Q4_K_S")
    # behind the first four layers, which have Q5_K in any Llama
    assert types["blk.40.attn_v.weight"] == attn_v


def test_qwen2_of_80_layers_is_a_70b(model: Get) -> None:
    """Qwen2.5-72B is LLM_TYPE_70B as well."""
    assert kinds(model("Qwen/Qwen2.5-72B"), "Q4_K_S")["blk.40.attn_v.weight"] == "Q5_K"
    assert kinds(model("Qwen/Qwen2.5-32B"), "Q4_K_S")["blk.40.attn_v.weight"] == "Q4_K"


def test_long_factors_are_stored(model: Get) -> None:
    """Phi-3's LongRoPE: two tensors of head_dim / 2 = 48 fp32 factors."""
    phi = model("microsoft/Phi-3-mini-128k-instruct")
    found = [(item.name, item.dtype, item.shape, item.nbytes) for item in get("q4_k_m").extras(phi)]
    assert found == [
        ("rope_factors_long.weight", "F32", (48,), 192),
        ("rope_factors_short.weight", "F32", (48,), 192),
    ]


def test_models_without_factors_have_none(model: Get) -> None:
    """Qwen3-8B scales nothing."""
    assert get("q4_k_m").extras(model("Qwen/Qwen3-8B")) == []


def test_a_row_is_a_vector() -> None:
    """ggml counts dimensions up to the last that is not 1: a matrix of one row is kept in fp32."""
    one = llama(hidden_size=64, num_attention_heads=64, num_key_value_heads=1, head_dim=1)
    types = kinds(one, "Q8_0")
    assert (types["blk.0.attn_k.weight"], types["blk.0.attn_q.weight"]) == ("F32", "Q8_0")


def test_one_expert_is_no_mixture() -> None:
    """MXFP4_MOE packs stacks of more than one expert."""
    config = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "num_experts_per_tok": 1,
    }  # fmt: skip
    for experts, kind in ((1, "Q8_0"), (2, "MXFP4")):
        types = kinds(build({**config, "num_local_experts": experts}, "mixture"), "MXFP4_MOE")
        assert types["blk.0.ffn_up_exps.weight"] == kind


def test_rows_that_are_no_whole_blocks_fall_back(model: Get) -> None:
    """Qwen2.5-0.5B is 896 wide, which 256 does not divide: Q4_K becomes Q5_0 and Q6_K becomes Q8_0."""
    qwen, form = model("Qwen/Qwen2.5-0.5B"), get("q4_k_m")
    types = {item.name: item.dtype for tensor in qwen.tensors for item in form.stored(tensor, qwen)}
    assert types["blk.0.attn_q.weight"] == "Q5_0"
    assert types["blk.0.attn_v.weight"] == "Q8_0"
    assert types["blk.0.ffn_down.weight"] == "Q6_K"  # 4864 columns are whole blocks
    assert types["token_embd.weight"] == "Q8_0"
    assert types["blk.0.attn_q.bias"] == "F32"


@pytest.mark.parametrize(
    ("mix", "attn_q"),
    {"iq4_xs": "IQ4_NL", "iq2_m": "IQ4_NL", "iq3_s": "IQ4_NL", "q2_k": "Q4_0", "q3_k_m": "Q4_0", "tq1_0": "Q4_0",
     "q5_k_m": "Q5_1", "q6_k": "Q8_0"}.items(),
)  # fmt: skip
def test_fallbacks(mix: str, attn_q: str, model: Get) -> None:
    """What each base type falls back to where 256 does not divide a row."""
    qwen, form = model("Qwen/Qwen2.5-0.5B"), get(mix)
    [query] = [tensor for tensor in qwen.tensors if tensor.name == "model.layers.5.self_attn.q_proj.weight"]
    assert form.stored(query, qwen)[0].dtype == attn_q


def test_mla_is_split(model: Get) -> None:
    """kv_b of an MLA layer becomes attn_k_b, transposed, and attn_v_b; 128 columns fall back from Q4_K."""
    deepseek, form = model("deepseek-ai/DeepSeek-V3"), get("q4_k_m")
    [kv_b] = [tensor for tensor in deepseek.tensors if tensor.name == "model.layers.0.self_attn.kv_b_proj.weight"]
    assert [(item.name, item.dtype, item.shape) for item in form.stored(kv_b, deepseek)] == [
        ("blk.0.attn_k_b.weight", "Q5_0", (128, 512, 128)),
        ("blk.0.attn_v_b.weight", "Q4_K", (128, 128, 512)),
    ]


def test_gpt_oss_gate_and_up_are_separated(model: Get) -> None:
    """gpt-oss's experts become MXFP4 in three stacked tensors, everything else Q8_0."""
    oss, form = model("openai/gpt-oss-20b"), get("mxfp4_moe")
    types = {item.name: item for tensor in oss.tensors for item in form.stored(tensor, oss)}
    for part in ("gate", "up", "down"):
        item = types[f"blk.0.ffn_{part}_exps.weight"]
        assert (item.dtype, item.shape) == ("MXFP4", (32, 2880, 2880))
        assert types[f"blk.0.ffn_{part}_exps.bias"].shape == (32, 2880)
    assert types["blk.0.attn_q.weight"].dtype == types["output.weight"].dtype == "Q8_0"
    assert types["blk.0.ffn_gate_inp.weight"].dtype == types["blk.0.attn_sinks.weight"].dtype == "F32"


def test_a_publishers_own_recipe_is_near(model: Get) -> None:
    """Qwen3.5-9B's Q4_K_M of 5,680,529,408 B (llmfit issue 302) keeps more in Q8_0 than the mix says."""
    header = 11_000_000  # a vocabulary of 248,320
    weights = get("q4_k_m").weigh(model("Qwen/Qwen3.5-9B"))
    text = weights.total - weights.by_role["vision"]  # the tower is a file of its own (mmproj)
    assert 0 < 5_680_529_408 - header - text < 0.01 * 5_680_529_408


def test_recurrent_layers(model: Get) -> None:
    """Qwen3.5's linear attention under the names and types of published files (candle pull request 3821)."""
    qwen, form = model("Qwen/Qwen3.5-9B"), get("q4_k_m")
    types = {item.name: item.dtype for tensor in qwen.tensors for item in form.stored(tensor, qwen)}
    layer = {name.removeprefix("blk.0."): kind for name, kind in types.items() if name.startswith("blk.0.")}
    assert {name for name, kind in layer.items() if kind == "F32"} == {
        "attn_norm.weight", "post_attention_norm.weight", "ssm_a", "ssm_conv1d.weight", "ssm_dt.bias",
        "ssm_norm.weight",
    }  # fmt: skip
    assert {name for name, kind in layer.items() if kind != "F32"} == {
        "attn_gate.weight", "attn_qkv.weight", "ffn_down.weight", "ffn_gate.weight", "ffn_up.weight",
        "ssm_alpha.weight", "ssm_beta.weight", "ssm_out.weight",
    }  # fmt: skip


def test_unknown_tensor_is_refused(model: Get) -> None:
    """A tensor without a known GGUF name is an error that names it, never a guess."""
    llama = model("meta-llama/Llama-3.2-1B")
    strange = llama.tensors[1]._replace(name="model.layers.0.strange.weight")
    with pytest.raises(FormatError, match=r"model\.layers\.0\.strange\.weight of model type 'llama' has no name"):
        named(strange, llama)


def test_block_table_is_ggufs() -> None:
    """The table equals gguf-py's, but for Q8_1 (36 bytes in C, never stored) and Q2_0 (which it lacks)."""
    library = pytest.importorskip("gguf")
    theirs = {kind.name: (int(kind), *library.GGML_QUANT_SIZES[kind]) for kind in library.GGMLQuantizationType}
    ours = {kind.name: (kind.id, kind.weights, kind.nbytes) for kind in TYPES.values()}
    assert ours["Q8_1"] == (9, 32, 36)
    assert ours["Q2_0"] == (42, 64, 18)
    theirs["Q8_1"] = ours["Q8_1"]
    assert ours == {**theirs, "Q2_0": ours["Q2_0"]}


def test_names_are_ggufs(model: Get) -> None:
    """Names equal what gguf-py's tensor map gives for the same architecture."""
    library = pytest.importorskip("gguf")
    architectures = {
        "meta-llama/Llama-3.1-8B": "LLAMA",
        "Qwen/Qwen2.5-7B": "QWEN2",
        "Qwen/Qwen3-8B": "QWEN3",
        "Qwen/Qwen3-30B-A3B": "QWEN3MOE",
        "google/gemma-2-9b": "GEMMA2",
        "mistralai/Mixtral-8x7B-v0.1": "LLAMA",
        "allenai/OLMo-2-1124-13B": "OLMO2",
        "microsoft/Phi-3-mini-128k-instruct": "PHI3",
    }
    form = get("q8_0")
    for name, architecture in architectures.items():
        known = model(name)
        names = library.get_tensor_name_map(library.MODEL_ARCH[architecture], known.config.layers)
        for tensor in known.tensors:
            [item] = form.stored(tensor, known)
            theirs = names.get_name(tensor.name.replace(".*", ""), try_suffixes=(".weight", ".bias"))
            assert item.name == theirs, tensor.name


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_real_file_of_every_type(kind: str, tmp_path: Path) -> None:
    """A real GGUF file of every type, written by the gguf package, holds the bytes that the table says."""
    library = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    ours = TYPES[kind]
    if kind in ("Q8_1", "Q2_0"):
        pytest.skip(f"{kind}: gguf-py has another size or none")
    rows, columns = 4, 2 * ours.weights
    nbytes = ours.size((rows, columns))
    writer = library.GGUFWriter(tmp_path / "one.gguf", "llama")
    data = numpy.zeros((rows, nbytes // rows), dtype=numpy.uint8)
    writer.add_tensor("blk.0.attn_q.weight", data, raw_dtype=library.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    [tensor] = library.GGUFReader(tmp_path / "one.gguf").tensors
    assert (tensor.n_bytes, int(tensor.n_elements)) == (nbytes, rows * columns)


def test_retired_ids_are_refused_by_name() -> None:
    """A retired type's id is an error with its old name; an unknown one lists what is known."""
    with pytest.raises(FormatError, match=r"id 31 is retired \(Q4_0_4_4\)"):
        by_id(31)
    with pytest.raises(FormatError, match="id 99 is unknown"):
        by_id(99)
    assert not set(RETIRED) & set(BY_ID)


@settings(max_examples=40, deadline=None)
@given(config=llama_configs())
def test_every_mix_sums(config: dict[str, Any]) -> None:
    """For any Llama and any mix: parts sum to the total, stored tensors too, and fewer bits take fewer bytes."""
    small = build(config)
    for name in MIXES:
        form = gguf(name, name)
        weights = form.weigh(small)
        stored = [item.total for tensor in small.tensors for item in form.stored(tensor, small)]
        assert sum(stored) + sum(item.total for item in form.extras(small)) == weights.total
        assert sum(weights.by_role.values()) == sum(weights.by_dtype.values()) == weights.total
    order = ["F32", "BF16", "Q8_0", "Q6_K", "Q5_K_S", "Q4_0"]
    totals = [gguf(name, name).weigh(small).total for name in order]
    # falling back makes Q6_K as large as Q8_0 and Q5_K as large as Q5_1, never larger
    assert totals == sorted(totals, reverse=True)


@settings(max_examples=40, deadline=None)
@given(config=llama_configs())
def test_rows_are_whole_blocks(config: dict[str, Any]) -> None:
    """Whatever the widths, every tensor's row is made of whole blocks of its type."""
    small = build(config)
    for name in ("Q4_K_M", "IQ2_M", "Q4_0", "TQ1_0", "Q8_0"):
        form = gguf(name, name)
        for tensor in small.tensors:
            for item in form.stored(tensor, small):
                assert item.shape[-1] % TYPES[item.dtype].weights == 0
                assert item.nbytes == TYPES[item.dtype].size(item.shape)


#: llama.cpp, tools/quantize/quantize.cpp: "Please do not use ... quantization without an importance matrix".
NEED_A_MATRIX = {"IQ1_S", "IQ1_M", "IQ2_S", "IQ2_XXS", "IQ2_XS", "Q2_K_S"}


def test_mixes_that_llama_quantize_refuses_without_a_matrix() -> None:
    """Those that it names; of the others only such whose tensors need one (llama-quant.cpp tensor_requires_imatrix)."""
    needs = {name for name, mix in MIXES.items() if mix.imatrix}
    assert needs >= NEED_A_MATRIX
    assert needs - NEED_A_MATRIX <= {"IQ2_M", "IQ3_XXS", "IQ3_XS"}


def test_the_low_mixes_keep_their_head_in_five_bits() -> None:
    """llama-quant.cpp: output.weight is Q5_K for the 1 and 2 bit mixes and IQ3_XXS, Q6_K for the other K-quants."""
    low = {name for name, mix in MIXES.items() if mix.low}
    assert low == {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"}
    assert {MIXES[name].head for name in {*low, "IQ3_XXS"}} == {"Q5_K"}
    assert {MIXES[name].head for name in ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ3_M", "IQ4_XS")} == {"Q6_K"}
