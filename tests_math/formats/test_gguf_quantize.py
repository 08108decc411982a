"""Which tensor gets which type: llama_model_quantize of a real llama.cpp against our mixes, for every file type.

A dry run over a header of each architecture's full size, a thirty-second of them a run by the day, all with
MEMBUDGET_FULL=1; and a tiny random model that is quantized for good.
"""

from __future__ import annotations

import datetime
import os
import random
import struct
from pathlib import Path

import pytest

from membudget.checkpoint.gguf_header import tensors, write
from membudget.checkpoint.gguf_header_keys import ARCHITECTURES, metadata
from membudget.engines.llama_cpp.oracle import file_types
from membudget.formats.gguf import Gguf, gguf
from membudget.formats.gguf_mix import MIXES, PLAIN
from membudget.model import Model, build
from tests_math.engines.llama_cpp.library import needs_library
from tools.llama_census import candidate, published_models

pytestmark = [pytest.mark.cpu, needs_library]

SHARES = 32
TODAY = None if os.environ.get("MEMBUDGET_FULL") else datetime.date.today().toordinal() % SHARES
#: llama_ftype, include/llama.h.
FTYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13,
    "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "Q2_K_S": 21,
    "IQ3_XS": 22, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28, "IQ2_M": 29,
    "IQ4_XS": 30, "IQ1_M": 31, "TQ1_0": 36, "TQ2_0": 37, "MXFP4_MOE": 38, "Q2_0": 41,
}  # fmt: skip
KINDS = [kind for number, kind in enumerate(ARCHITECTURES) if TODAY is None or number % SHARES == TODAY]


@pytest.fixture(scope="module")
def published() -> dict[str, list[Model]]:
    """The package's configs by model_type."""
    return published_models()


def without_imatrix(mix: str) -> Gguf:
    """As the dry run makes it, which has no importance matrix and asks for none."""
    form = gguf(mix, mix)
    form.imatrix, form.key = False, ("gguf", mix, False, False)
    return form


def test_every_mix_has_its_number() -> None:
    """The converter's own types are left out: nothing is quantized in them."""
    assert set(FTYPES) == set(MIXES) - set(PLAIN)


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_an_architecture(kind: str, published: dict[str, list[Model]], tmp_path: Path) -> None:
    """Tensor by tensor, in every file type."""
    model = candidate(kind, published)
    source = tensors(gguf("gguf-f16", "F16"), model)
    write(tmp_path / "model.gguf", metadata(model, {item.name: item.shape for item in source}), source)
    for mix, asked in zip(FTYPES, file_types(str(tmp_path / "model.gguf"), list(FTYPES.values())), strict=True):
        ours = {item.name: item.kind for item in tensors(without_imatrix(mix), model)}
        differ = {name: (asked.get(name), ours.get(name)) for name in asked | ours if asked.get(name) != ours.get(name)}
        assert not differ, mix


def test_a_tiny_random_model_is_quantized(tmp_path: Path) -> None:
    """Not a dry run: random weights become blocks of a mix's types, where no importance matrix is needed."""
    config = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 8}
    model = build({"model_type": "llama", "intermediate_size": 512, "vocab_size": 512, **config})
    source = tensors(gguf("gguf-f16", "F16"), model)
    path = tmp_path / "model.gguf"
    write(path, metadata(model, {item.name: item.shape for item in source}), source)
    fill(path)
    mixes = [mix for mix in FTYPES if not MIXES[mix].imatrix]
    found = file_types(str(path), [FTYPES[mix] for mix in mixes], dry_run=False)
    for mix, asked in zip(mixes, found, strict=True):
        assert asked == {item.name: item.kind for item in tensors(gguf(mix, mix), model)}, mix


def fill(path: Path) -> None:
    """Small random numbers in place of the hole; fp32 norms read as numbers, too."""
    from membudget.checkpoint.gguf_file import read_file

    entries, _, _ = read_file(str(path))
    draw = random.Random(16)
    with open(path, "r+b") as file:
        for entry in entries:
            count, code = (entry.nbytes // 2, "e") if entry.dtype == "F16" else (entry.nbytes // 4, "f")
            file.seek(entry.offset)
            file.write(struct.pack(f"<{count}{code}", *(draw.uniform(-0.1, 0.1) for _ in range(count))))
