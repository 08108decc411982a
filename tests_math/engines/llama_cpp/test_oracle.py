"""A real llama.cpp answers about full-size headers: known answers, and what it refuses."""

from __future__ import annotations

import pathlib

import pytest

from membudget.checkpoint.gguf_header import tensors, write
from membudget.checkpoint.gguf_header_keys import metadata
from membudget.cli.main import main
from membudget.engines.llama_cpp.oracle import LibraryMissing, OracleError, ask, ask_file, find_library
from membudget.engines.llama_cpp.settings import FlashAttention, Settings
from membudget.formats.gguf import gguf
from membudget.model import build
from tests_math.engines.llama_cpp.library import LIBRARY, needs_library

pytestmark = pytest.mark.cpu

MODELS = "membudget/data/models"
MIB = 2**20


def total(mib: float) -> int:
    """Bytes of a printed figure."""
    return round(mib * MIB)


@needs_library
def test_llama_3_1_8b() -> None:
    """The published answers of the v0.4.0 library, to its print's hundredth of a MiB."""
    model = build(f"{MODELS}/meta-llama--Llama-3.1-8B.json")
    settings = [
        Settings(8192, 1, flash_attn=FlashAttention.OFF),
        Settings(8192, 1, flash_attn=FlashAttention.ON),
        Settings(32768, 4, ubatch_size=2048, cache_type_k="q8_0", cache_type_v="q8_0"),
    ]
    plain, flash, four = ask(model, gguf("q4_k_m", "Q4_K_M"), settings, LIBRARY)
    assert (plain.prints.cache_bytes, plain.prints.caches[0].cells) == (total(1024), 8192)
    assert (plain.prints.compute["CPU"], flash.prints.compute["CPU"]) == (total(572.01), total(266.5))
    assert (four.prints.cache_bytes, four.prints.compute["CPU"]) == (total(2176), total(1098.01))


@needs_library
def test_gemma_3_27b() -> None:
    """Windows beside full layers, four slots and one."""
    model = build(f"{MODELS}/google--gemma-3-27b-it.json")
    settings = [
        Settings(32768, 4),
        Settings(131072, 1, ubatch_size=2048, cache_type_k="q8_0", cache_type_v="q8_0"),
    ]
    four, one = ask(model, gguf("q4_k_m", "Q4_K_M"), settings, LIBRARY)
    assert [cache.size for cache in four.prints.caches] == [total(2560), total(2496)]
    assert four.prints.compute["CPU"] == total(533.13)
    assert [cache.size for cache in one.prints.caches] == [total(5440), total(663)]
    assert one.prints.compute["CPU"] == total(2132.51)


@needs_library
def test_one_wrong_shape_is_refused(tmp_path: pathlib.Path) -> None:
    """llama.cpp names the tensor, so a header that loads proves the inventory."""
    model = build(f"{MODELS}/Qwen--Qwen3-0.6B.json")
    entries = tensors(gguf("q8_0", "Q8_0"), model)
    keys = metadata(model, {entry.name: entry.shape for entry in entries})
    at = next(i for i, entry in enumerate(entries) if entry.name == "blk.5.ffn_down.weight")
    entries[at] = entries[at]._replace(shape=(entries[at].shape[0], entries[at].shape[1] + 32))
    write(tmp_path / "wrong.gguf", keys, entries)
    with pytest.raises(OracleError, match=r"blk\.5\.ffn_down\.weight"):
        ask_file(str(tmp_path / "wrong.gguf"), [Settings(512, 1)], LIBRARY)


@needs_library
def test_a_setting_that_llama_cpp_refuses_is_an_answer() -> None:
    """A row of 128 q4_0 weights is fine, one of a head of 80 is not: the words are llama.cpp's."""
    model = build({"model_type": "llama", "hidden_size": 320, "num_attention_heads": 4, "num_hidden_layers": 2})
    good, bad = ask(model, gguf("f16", "F16"), [Settings(512, 1), Settings(512, 1, cache_type_k="q8_0")], LIBRARY)
    assert not good.error
    assert "80" in bad.error or "block" in bad.error


def test_another_build_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    """Nothing of it is called."""
    (tmp_path / "libllama.v0.5.0.so").write_bytes(b"")
    with pytest.raises(LibraryMissing) as caught:
        find_library(str(tmp_path))
    assert caught.value.code == "another_llama_cpp"


def test_no_library_names_the_command(tmp_path: pathlib.Path) -> None:
    """The documented npm command."""
    with pytest.raises(LibraryMissing, match="npm install") as caught:
        find_library(str(tmp_path))
    assert caught.value.code == "no_llama_cpp"


@needs_library
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """membudget oracle --engine llama_cpp: both sides, and code 0."""
    code = main(["oracle", f"{MODELS}/Qwen--Qwen3-0.6B.json", "--engine", "llama_cpp", "-np", "4", "--offline"])
    assert code == 0
    assert "cache 896.00 (arithmetic 896.00), compute 300.75 (arithmetic 300.75)" in capsys.readouterr().out
