"""KV cache dtypes: bytes as vLLM and llama.cpp store them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.formats import FormatError, UnknownFormat, kv
from membudget.formats.kv_auto import declared
from membudget.model import Config, Model
from membudget.model.caches import CacheSpec, State, summarize

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
GQA = CacheSpec(0, "full", 8, 128, 128)
MLA = CacheSpec(0, "latent", latent=512, rope=64)
INDEXED = MLA._replace(index=128)

# bytes of one token in one layer of 8 KV heads of 128
TOKEN = {
    "bf16": 4096,
    "fp16": 4096,
    "fp32": 8192,
    "fp8": 2048,
    "fp8_e5m2": 2048,
    "nvfp4": 8 * 2 * (64 + 8),
    "int8_per_token_head": 8 * 2 * (128 + 4),
    "fp8_per_token_head": 8 * 2 * (128 + 4),
    "int4_per_token_head": 8 * 2 * (64 + 4),
    "q8_0": 2048 * 34 // 32,
    "q5_1": 2048 * 24 // 32,
    "q5_0": 2048 * 22 // 32,
    "q4_1": 2048 * 20 // 32,
    "q4_0": 2048 * 18 // 32,
    "iq4_nl": 2048 * 18 // 32,
}


@pytest.mark.parametrize(("name", "size"), TOKEN.items())
def test_bytes_of_a_token(name: str, size: int) -> None:
    """Keys and values of a token, their scales included."""
    assert kv.get(name).bytes_for(GQA, 1) == size
    assert kv.get(name).bytes_for(GQA, 1000) == 1000 * size


def test_every_dtype_is_checked() -> None:
    """No dtype without a known size: those for MLA are below."""
    assert set(kv.names()) == {*TOKEN, "auto", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla"}


def test_llama_8b(model: Get) -> None:
    """Llama-3.1-8B: 131,072 B a token in bf16, 1 GiB at 8,192 tokens, half of it in fp8."""
    llama = model("meta-llama/Llama-3.1-8B")
    bf16, fp8 = kv.get("bf16").of(llama), kv.get("fp8").of(llama)
    assert bf16.per_token() == 131_072
    assert bf16.bytes(8192) == 2 * fp8.bytes(8192) == 2**30
    assert kv.get("bf16").bytes(llama.cache_shape, 8192) == 2**30


def test_published_llama_cpp_log() -> None:
    """Gemma-4-12B in q8_0 at 262,144 cells: 2176 MiB in 8 full layers, 255 MiB in 40 of 1536 (unsloth issue 10489)."""
    q8 = kv.get("q8_0", engine="llama.cpp")
    # keys and values of 8 KV heads of 256; of one of 512 in the full layers, keys shared with values there
    sliding = CacheSpec(0, "full", 8, 256, 256)
    full = CacheSpec(0, "full", 1, 512, 512)
    assert 40 * q8.bytes_for(sliding, 1536) == 255 * 2**20
    assert 8 * q8.bytes_for(full, 262_144) == 2176 * 2**20


def test_latent_attention() -> None:
    """MLA: 576 elements a token in bf16 and fp8; fp8_ds_mla lays out 656 bytes."""
    assert kv.get("bf16").bytes_for(MLA, 1) == 1152
    assert kv.get("fp8").bytes_for(MLA, 1) == 576
    assert kv.get("fp8_ds_mla").bytes_for(MLA, 1) == 656 == 512 + 4 * 4 + 64 * 2
    assert kv.get("nvfp4_ds_mla").bytes_for(MLA, 1) == 352
    with pytest.raises(FormatError, match="fp8_ds_mla is for MLA; layer 0 keeps keys and values: use fp8"):
        kv.get("fp8_ds_mla").bytes_for(GQA, 1)
    with pytest.raises(FormatError, match=r"latent of 512 \+ 64; layer 0 has 256 \+ 64"):
        kv.get("fp8_ds_mla").bytes_for(MLA._replace(latent=256), 1)


def test_indexer_keys() -> None:
    """vLLM keeps an indexer's 128 keys as 132 bytes in any dtype; elsewhere they are elements like others."""
    assert kv.get("fp8_ds_mla").bytes_for(INDEXED, 1) == 656 + 132
    assert kv.get("bf16", engine="vllm").bytes_for(INDEXED, 1) == 1152 + 132
    assert kv.get("bf16").bytes_for(INDEXED, 1) == 1152 + 256


def test_windows_and_states() -> None:
    """A window stops growing; a recurrent state keeps the model's width, and fp32 where the layer says so."""
    window = GQA._replace(kind="sliding", window=100)
    recurrent = CacheSpec(1, "recurrent", states=(State("conv", 10), State("ssm", 20, fp32=True)))
    assert kv.get("fp8").bytes_for(window, 5000) == 100 * 2048
    assert kv.get("fp8").bytes_for(recurrent, 5000) == 10 * 2 + 20 * 4
    assert kv.get("fp32").bytes_for(recurrent, 5000) == 30 * 4
    assert kv.get("bf16").bytes_for(GQA._replace(kind="shared"), 5000) == 0


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_rows_must_be_whole_blocks(name: str) -> None:
    """A head that 32 does not divide has no quantized cache in llama.cpp: an error that says so."""
    with pytest.raises(
        FormatError, match=f"kv cache dtype {name}: layer 0 has rows of 80, not divisible into blocks of 32"
    ):
        kv.get(name).bytes_for(GQA._replace(k_dim=80), 1)


def test_names() -> None:
    """Spellings and engines: unknown names list what is known, another engine's dtype is refused."""
    assert kv.get("BFloat16") == kv.get("bf16")
    assert kv.get("f16", engine="llama.cpp").num == 2
    with pytest.raises(UnknownFormat, match=r"unknown kv cache dtype 'fp9': did you mean fp8.*Known are auto, bf16"):
        kv.get("fp9")
    with pytest.raises(FormatError, match=r"fp8 is vllm's; llama\.cpp has bf16, fp16, fp32, q8_0"):
        kv.get("fp8", engine="llama.cpp")
    with pytest.raises(FormatError, match="auto follows the checkpoint: it needs a config"):
        kv.get("auto")


CT = {"quant_method": "compressed-tensors"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "float16"}, "fp16"),
        # vLLM 0.32's _resolve_auto_dtype: fp32, also where nothing is said, becomes the platform's first, bf16
        ({"torch_dtype": "float32"}, "bf16"),
        ({"torch_dtype": None}, "bf16"),
        ({"quantization_config": CT | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "fp8"),
        ({"quantization_config": CT | {"kv_cache_scheme": None}}, "bf16"),
        # MLA layers do not look at the scheme (vLLM mla_attention.py)
        ({"quantization_config": CT | {"kv_cache_scheme": FP8}, "kv_lora_rank": 512}, "bf16"),
        ({"quantization_config": MODELOPT | {"kv_cache_scheme": "FP8"}}, "fp8"),
        ({"quantization_config": MODELOPT | {"kv_cache_scheme": FP8 | {"dynamic": False}}}, "fp8"),
        # vLLM takes a dynamic one, and what it does not know, as auto
        ({"quantization_config": MODELOPT | {"kv_cache_scheme": FP8}}, "bf16"),
        ({"quantization_config": MODELOPT | {"kv_cache_quant_algo": "INT3"}}, "bf16"),
        ({"quantization_config": MODELOPT | {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
    ],
)
def test_auto(more: dict[str, Any], name: str) -> None:
    """`auto` is the scheme that the checkpoint declares, else the 16 bits that it is served in."""
    config = Config({"model_type": "llama", "torch_dtype": "bfloat16", **more})
    assert kv.get("auto", config).name == name


def test_auto_reads_modelopts_file() -> None:
    """ModelOpt declares the cache in hf_quant_config.json."""
    config = Config({"model_type": "llama", "torch_dtype": "bfloat16"})
    content = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    assert kv.get("auto", config, hf_quant_config=content).name == "fp8"


@pytest.mark.parametrize(
    ("version", "compressed", "modelopt"),
    # wheels of vllm: attention.py reads compressed-tensors' scheme since 0.15, torch_utils.py ModelOpt's since 0.14
    [((0, 13, 0), None, None), ((0, 14, 0), None, "fp8"), ((0, 15, 0), "fp8", "fp8"), ((0, 32, 0), "fp8", "fp8")],
)
def test_versions_that_follow_the_declared_cache(
    version: tuple[int, ...], compressed: str | None, modelopt: str | None
) -> None:
    """Which vLLM takes a checkpoint's KV scheme for ``auto``."""
    for method, name in ((CT, compressed), (MODELOPT, modelopt)):
        raw = {"model_type": "llama", "quantization_config": {**method, "kv_cache_scheme": FP8 | {"dynamic": False}}}
        found = declared(Config(raw), version=version)
        assert (found.name if found else None) == name


@pytest.mark.parametrize("change", [{"num_bits": 4}, {"type": "int"}, {"strategy": "token"}, {"symmetric": False}])
def test_schemes_that_vllm_refuses(change: dict[str, Any]) -> None:
    """compressed_tensors.py validate_kv_cache_scheme: 8 bits, float, a tensor or a head, symmetric."""
    config = Config({"model_type": "llama", "quantization_config": CT | {"kv_cache_scheme": FP8 | change}})
    with pytest.raises(FormatError):
        declared(config)


specs = st.builds(
    CacheSpec,
    layer=st.just(0),
    kind=st.sampled_from(["full", "sliding"]),
    kv_heads=st.integers(1, 16),
    k_dim=st.sampled_from([32, 64, 128, 256]),
    v_dim=st.sampled_from([32, 64, 128]),
    window=st.sampled_from([0, 1, 128, 4096]),
    states=st.lists(st.builds(State, st.just("s"), st.integers(0, 10**6), st.booleans()), max_size=2).map(tuple),
    latent=st.just(0),
    rope=st.just(0),
    index=st.just(0),
    index_fp32=st.just(False),
    entry=st.sampled_from([0, 0, 32, 512]),
    rate=st.sampled_from([1, 4, 128]),
    overlap=st.just(False),
)


@settings(deadline=None)
@given(layers=st.lists(specs, min_size=1, max_size=8), tokens=st.integers(0, 2**20), more=st.integers(0, 2**16))
def test_sums_and_monotone(layers: list[CacheSpec], tokens: int, more: int) -> None:
    """Layers sum to the model, plain dtypes agree with the summed shape, longer is never smaller."""
    for name in TOKEN:
        dtype = kv.get(name)
        total = sum(dtype.bytes_for(spec, tokens) for spec in layers)
        summed = dtype.sum(layers)
        assert summed.bytes(tokens) == total
        assert summed.bytes(tokens + more) >= total
        if dtype.plain:
            assert dtype.bytes(summarize(layers), tokens) == total
    q8, q4 = kv.get("q8_0").sum(layers), kv.get("q4_0").sum(layers)
    assert kv.get("fp8").sum(layers).bytes(tokens) <= q8.bytes(tokens) <= kv.get("bf16").sum(layers).bytes(tokens)
    assert q4.bytes(tokens) <= q8.bytes(tokens)


def test_a_token_at_the_edge_of_a_window() -> None:
    """The window's last token still grows the layer, the next one does not; entries count on average, rounded up."""
    window = GQA._replace(kind="sliding", window=100)
    summed = kv.get("fp8").sum([window, GQA])
    assert [summed.per_token(length) for length in (1, 100, 101)] == [4096, 4096, 2048]
    assert summed.bends == (100,)
    sparse = CacheSpec(0, "full", 8, 128, 128, window=100, entry=512, rate=7)
    assert kv.get("bf16").sum([sparse]).per_token(50) == 4096 + 147
    assert kv.get("bf16").bytes_for(sparse, 50) == 50 * 4096 + 7 * 1024


def test_other_parts_of_a_latent_layer() -> None:
    """Scales of the latent twice, as of a head's keys and values; an indexer's keys in fp32 where the layer says so."""
    assert kv.get("int8_per_token_head").bytes_for(MLA, 1) == 576 + 2 * 4
    assert kv.get("bf16").bytes_for(INDEXED._replace(index_fp32=True), 1) == 1152 + 4 * 128
    assert kv.get("bf16").bytes_for(CacheSpec(0, "full", 8, 128, 0), 1) == 2048
    assert kv.get("q8_0").bytes_for(CacheSpec(0, "full", 8, 128, 0), 1) == 8 * 136
    with pytest.raises(FormatError, match="not for MLA"):
        kv.get("nvfp4").bytes_for(MLA, 1)


def test_the_summed_shape_of_plain_dtypes() -> None:
    """Half a byte an element, and states by their own width; a dtype with scales has no such sum."""
    shape = summarize([GQA, CacheSpec(1, "recurrent", states=(State("conv", 10), State("ssm", 20, fp32=True)))])
    assert kv.get("fp8")._replace(indexer=0).bytes(shape, 10) == 10 * 2048 + 10 * 2 + 20 * 4
    with pytest.raises(FormatError, match="stores more than its elements"):
        kv.get("int8_per_token_head").bytes(shape, 10)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ({"type": "float", "num_bits": 8, "dynamic": False}, "fp8"),
        ({"type": "float", "num_bits": 4}, "nvfp4"),
        ({"type": "float", "num_bits": 5}, None),
        ({"type": "int", "num_bits": 4}, None),
        ({"type": "float", "num_bits": 8, "dynamic": True}, None),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_modelopts_schemes(scheme: dict[str, Any], name: str | None, inner: bool) -> None:
    """torch_utils.py: 8 bits, float, static is fp8; 4 bits, float NVFP4 since 0.20; any other is the model's dtype."""
    content: dict[str, Any] = {"quant_algo": "FP8", "kv_cache_scheme": scheme}
    content = {"quantization": content} if inner else content
    config = Config({"model_type": "llama", "quantization_config": {"quant_method": "modelopt", **content}})
    found = declared(config)
    assert (found.name if found else None) == name
    if name == "nvfp4":
        assert declared(config, version=(0, 19, 9)) is None
        assert declared(config, version=(0, 20, 0)) is not None
    bare = declared(Config({"model_type": "llama", "quantization_config": content}))
    assert inner or (bare.name if bare else None) == name


def test_names_that_are_not_known() -> None:
    """Three near ones at most, a name that never ends is cut."""
    with pytest.raises(UnknownFormat, match=r"did you mean q8_0"):
        kv.get("q8_00")
    for length, shown in ((120, "x" * 120), (121, "x" * 117 + "...")):
        with pytest.raises(UnknownFormat, match=f"'{shown}'"):
            kv.get("x" * length)
