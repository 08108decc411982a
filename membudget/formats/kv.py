"""KV cache dtypes: bytes of what a layer keeps, as vLLM and llama.cpp store it.

`get` knows them by the engines' names, `auto` reads what a checkpoint asks for (`membudget.formats.kv_auto`),
and `KvDtype.of` sums a model once, so that a plan only multiplies.

Sources: vLLM v1/kv_cache_interface.py and the attention backends' get_kv_cache_shape;
llama.cpp src/llama-kv-cache.cpp and common/arg.cpp (kv_cache_types).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from membudget.formats import kv_auto
from membudget.formats.base import Format, FormatError, UnknownFormat
from membudget.formats.dtypes import DENSE_FORMATS
from membudget.formats.kv_auto import LATEST
from membudget.model import Model
from membudget.model.caches import CacheShape, CacheSpec, State
from membudget.model.config import Config


class KvBytes(NamedTuple):
    """All layers' caches in one dtype, in bytes.

    grows: ((bytes a token, window or 0 for no bound), ...).  fixed: bytes of states, whatever the length.
    entries: ((bytes an entry, tokens it stands for), ...), of layers that compress tokens.
    """

    grows: tuple[tuple[int, int], ...]
    fixed: int
    entries: tuple[tuple[int, int], ...] = ()

    def bytes(self, tokens: int) -> int:
        """Bytes that one sequence of `tokens` tokens keeps."""
        total = self.fixed
        for size, window in self.grows:
            total += size * (min(tokens, window) if window else tokens)
        return total + sum(size * (tokens // rate) for size, rate in self.entries)

    def per_token(self, length: int = 1) -> int:
        """Bytes that token number `length` adds: fewer once windows are full; entries on average."""
        grown = sum(size for size, window in self.grows if not window or length <= window)
        return grown + sum(-(-size // rate) for size, rate in self.entries)

    @property
    def bends(self) -> tuple[int, ...]:
        """Lengths from which on fewer layers grow."""
        return tuple(window for _, window in self.grows if window)


class KvDtype(NamedTuple):
    """How keys and values are stored.

    name: as the engine spells it.  engine: ``any``, ``vllm`` or ``llama.cpp``.
    num, den: an element takes num / den bytes.  block: elements that share a scale; rows divide into blocks.
    per_head: bytes beside them for every head and token, for keys and for values each.
    latent: bytes of one token of an MLA layer, where that is not elements x num / den.
    latent_only: stores MLA layers and nothing else.  heads_only: stores no MLA layers.
    state: bytes of a recurrent state's element, which follows the model's dtype and not the cache's.
    indexer: bytes for 128 elements of a sparse indexer's keys; 0: as other elements.
    """

    name: str
    engine: str
    num: int
    den: int = 1
    block: int = 1
    per_head: int = 0
    latent: int = 0
    latent_only: bool = False
    heads_only: bool = False
    state: int = 2
    indexer: int = 0

    @property
    def plain(self) -> bool:
        """Whether a token's bytes depend on its number of elements alone."""
        return not (self.per_head or self.latent or self.indexer) and self.block == 1

    def token_bytes(self, spec: CacheSpec) -> int:
        """Bytes of one more token in this layer, while it still grows."""
        where = f"layer {spec.layer}"
        size = spec.kv_heads * (self.side_bytes(spec.k_dim, where) + self.side_bytes(spec.v_dim, where))
        if spec.latent:
            size += self.latent_bytes(spec.latent, spec.rope, where)
        if spec.index:
            size += self._index(spec)
        return size

    def entry_bytes(self, spec: CacheSpec) -> int:
        """Bytes of one compressed entry of this layer, which stands for `spec.rate` tokens."""
        return self._row(spec.entry, f"layer {spec.layer}") if spec.entry else 0

    def bytes_for(self, spec: CacheSpec, tokens: int) -> int:
        """Bytes that one layer keeps for one sequence of `tokens` tokens, scales and states included.

        0 for a layer that shares another's cache.  `FormatError` where the rows do not divide.
        """
        if spec.kind in ("shared", "none", "cross"):
            return 0
        size = self.token_bytes(spec) * spec.tokens(tokens) if spec.per_token else 0
        if spec.entry:
            size += self.entry_bytes(spec) * (tokens // spec.rate)
        return size + sum(self.state_bytes(state) for state in spec.states)

    def of(self, model: Model) -> KvBytes:
        """All of a model's layers, summed once and kept on the model."""
        key = ("kv", self)
        found = model.memo.get(key)
        if found is None:
            found = model.memo[key] = self.sum(model.caches)
        assert isinstance(found, KvBytes)
        return found

    def sum(self, specs: Iterable[CacheSpec]) -> KvBytes:
        """These layers, grouped by window."""
        grows: dict[int, int] = {}
        entries: dict[int, int] = {}
        fixed = 0
        for spec in specs:
            if spec.kind in ("shared", "none", "cross"):
                continue
            if spec.per_token:
                grows[spec.window] = grows.get(spec.window, 0) + self.token_bytes(spec)
            if spec.entry:
                entries[spec.rate] = entries.get(spec.rate, 0) + self.entry_bytes(spec)
            fixed += sum(self.state_bytes(state) for state in spec.states)
        ordered = (tuple((size, bound) for bound, size in sorted(by.items())) for by in (grows, entries))
        grown, compressed = ordered
        return KvBytes(grown, fixed, compressed)

    def bytes(self, shape: CacheShape, tokens: int) -> int:
        """Bytes of all layers of one sequence, for dtypes whose bytes depend on the elements alone."""
        if not self.plain:
            raise FormatError(f"kv cache dtype {self.name} stores more than its elements: use of(model).bytes(tokens)")
        grown = shape.elements(tokens) - shape.states
        return grown * self.num // self.den + shape.states * self.state + shape.states_fp32 * 4

    def state_bytes(self, state: State) -> int:
        """Bytes of a state of fixed size."""
        return state.elements * (4 if state.fp32 else self.state)

    def _index(self, spec: CacheSpec) -> int:
        if self.indexer:
            return spec.index * self.indexer // 128
        return spec.index * 4 if spec.index_fp32 else self._row(spec.index, f"layer {spec.layer}")

    def latent_bytes(self, latent: int, rope: int, where: str = "a layer") -> int:
        """Bytes of one token of an MLA layer: kv_lora_rank + qk_rope_head_dim elements, scales included."""
        if self.heads_only:
            raise FormatError(
                f"kv cache dtype {self.name} is not for MLA, and {where} keeps a latent: use {self.name}_ds_mla",
                code="kv_dtype_not_for_mla",
            )
        if not self.latent:
            # what is stored for a head's keys and for its values is stored for the one latent twice
            return self._row(latent + rope, where) + 2 * self.per_head
        if (latent, rope) != (512, 64):
            raise FormatError(
                f"kv cache dtype {self.name} is laid out for a latent of 512 + 64; {where} has {latent} + {rope}",
                code="kv_dtype_rows",
            )
        return self.latent

    def side_bytes(self, width: int, where: str = "a layer") -> int:
        """Bytes of one head's keys, or values, of `width` elements, for one token, scales included."""
        if not width:
            return 0
        if self.latent_only:
            raise FormatError(
                f"kv cache dtype {self.name} is for MLA; {where} keeps keys and values: use fp8",
                code="kv_dtype_only_for_mla",
            )
        return self._row(width, where) + self.per_head

    def _row(self, width: int, where: str) -> int:
        if width % self.block or width * self.num % self.den:
            raise FormatError(
                f"kv cache dtype {self.name}: {where} has rows of {width}, not divisible "
                f"into blocks of {max(self.block, self.den)}; use a 16-bit cache",
                code="kv_dtype_rows",
            )
        return width * self.num // self.den


#: vLLM keeps an indexer's keys (DeepSeek-V3.2) in fp8 with an fp32 scale for 128, whatever the cache's dtype.
_VLLM_INDEX = 132

_DTYPES = (
    KvDtype("bf16", "any", 2),
    KvDtype("fp16", "any", 2),
    KvDtype("fp32", "any", 4, state=4),
    # one scale a layer, kept with the weights
    KvDtype("fp8", "vllm", 1, indexer=_VLLM_INDEX),
    KvDtype("fp8_e4m3", "vllm", 1, indexer=_VLLM_INDEX),
    KvDtype("fp8_e5m2", "vllm", 1, indexer=_VLLM_INDEX),
    # 512 fp8 values, 4 fp32 scales, 64 RoPE values in bf16
    KvDtype("fp8_ds_mla", "vllm", 1, latent=656, latent_only=True, indexer=_VLLM_INDEX),
    KvDtype("nvfp4_ds_mla", "vllm", 1, latent=352, latent_only=True, indexer=_VLLM_INDEX),
    # packed pairs and an fp8 scale for 16
    KvDtype("nvfp4", "vllm", 9, 16, block=16, heads_only=True, indexer=_VLLM_INDEX),
    KvDtype("int8_per_token_head", "vllm", 1, per_head=4, indexer=_VLLM_INDEX),
    KvDtype("fp8_per_token_head", "vllm", 1, per_head=4, indexer=_VLLM_INDEX),
    KvDtype("int4_per_token_head", "vllm", 1, 2, per_head=4, indexer=_VLLM_INDEX),
    # ggml's blocks of 32
    KvDtype("q8_0", "llama.cpp", 34, 32, block=32),
    KvDtype("q5_1", "llama.cpp", 24, 32, block=32),
    KvDtype("q5_0", "llama.cpp", 22, 32, block=32),
    KvDtype("q4_1", "llama.cpp", 20, 32, block=32),
    KvDtype("q4_0", "llama.cpp", 18, 32, block=32),
    KvDtype("iq4_nl", "llama.cpp", 18, 32, block=32),
)
_BY_NAME = {kind.name: kind for kind in _DTYPES}
_SYNONYMS = {
    "bfloat16": "bf16", "float16": "fp16", "f16": "fp16", "half": "fp16", "float32": "fp32", "f32": "fp32",
    "float": "fp32", "fp8_inc": "fp8", "int8": "int8_per_token_head",
}  # fmt: skip


def cache(model: Model, name: str) -> KvBytes:
    """One sequence's cache when nothing is padded: the floor that every engine starts from; kept on the model.

    Raises `FormatError` where the dtype does not apply to the model's layers.
    """
    key = ("cache", name)
    found = model.memo.get(key)
    if found is None:
        found = model.memo[key] = get(name).of(model)
    assert isinstance(found, KvBytes)
    return found


def names() -> list[str]:
    """All KV cache dtypes by name, and ``auto``."""
    return ["auto", *_BY_NAME]


def get(
    name: str,
    config: Config | None = None,
    *,
    engine: str | None = None,
    hf_quant_config: Mapping[str, Any] | None = None,
) -> KvDtype:
    """The KV cache dtype of this name, in any case; ``auto`` needs the checkpoint's config.

    engine: ``vllm`` or ``llama.cpp``; refuses dtypes of another, and applies vLLM's layout of indexer keys.
    Raises `UnknownFormat` with what is known.
    """
    plain = name.strip().lower() if isinstance(name, str) else ""
    if plain == "auto":
        if config is None:
            raise FormatError("kv cache dtype auto follows the checkpoint: it needs a config")
        found = auto(config, hf_quant_config)
    else:
        known = _BY_NAME.get(_SYNONYMS.get(plain, plain)) or _BY_NAME.get(plain.replace("-", "_"))
        if known is None:
            matches = get_close_matches(plain, [*_BY_NAME, *_SYNONYMS], n=3)
            near = list(dict.fromkeys(_SYNONYMS.get(match, match) for match in matches))
            shown = name if len(name) <= 120 else name[:117] + "..."
            hint = f": did you mean {', '.join(near)}?" if near else "."
            raise UnknownFormat(f"unknown kv cache dtype {shown!r}{hint} Known are {', '.join(names())}")
        found = known
    if engine is None:
        return found
    if engine not in ("vllm", "llama.cpp"):
        raise FormatError(f"engine is {engine!r}; allowed are vllm and llama.cpp")
    if found.engine not in ("any", engine):
        allowed = [kind.name for kind in _DTYPES if kind.engine in ("any", engine)]
        raise FormatError(f"kv cache dtype {found.name} is {found.engine}'s; {engine} has {', '.join(allowed)}")
    return found._replace(indexer=_VLLM_INDEX) if engine == "vllm" else found


def auto(
    config: Config,
    hf_quant_config: Mapping[str, Any] | None = None,
    form: Format | None = None,
    engine: str | None = None,
    version: tuple[int, ...] = LATEST,
    dtype: str | None = None,
) -> KvDtype:
    """What ``auto`` means for this checkpoint: its declared KV scheme, else the dtype it is served in.

    engine: as in `get`; llama.cpp knows no declared scheme: its own default is fp16 (``-ctk f16``).
    form: the weight format it is served in; where that is a dense dtype the model runs in it.
    dtype: what the engine is told to run the model in (``--dtype``), None or ``auto`` where it is not told.
    version: of vLLM, whose rules differ.  Else a checkpoint in fp32 is served in 16 bits (vLLM's dtype auto).
    """
    if engine == "llama.cpp":
        return _BY_NAME["fp16"]
    declared = kv_auto.declared(config, hf_quant_config, version)
    if declared is not None:
        return get(declared.name)
    if dtype not in (None, "auto"):
        return get(str(dtype))
    if form is not None and form.name in DENSE_FORMATS.values():
        return _BY_NAME[form.name]
    # fp32, and a config that says nothing, become bf16: vLLM's _resolve_auto_dtype on what has bf16
    return _BY_NAME["fp16" if config.dtype == "float16" else "bf16"]
