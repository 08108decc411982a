"""KV cache dtypes: bytes of what a layer keeps, as vLLM and llama.cpp store it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from membudget.formats.base import FormatError, UnknownFormat

if TYPE_CHECKING:
    from membudget.model.caches import CacheShape, CacheSpec, State


class KvDtype(NamedTuple):
    """How keys and values are stored.

    name: as the engine spells it.  engine: ``any``, ``vllm`` or ``llama.cpp``.
    num, den: bytes an element is num / den.
    block: elements that share one block of num x block / den bytes; rows must divide into blocks.
    per_head: bytes beside them for every head and token, for keys and for values each.
    latent_bytes: bytes of one token of an MLA layer, where that is not elements x num / den.
    state: bytes of a recurrent state's element, which follows the model's dtype and not the cache's.
    """

    name: str
    engine: str
    num: int
    den: int = 1
    block: int = 1
    per_head: int = 0
    latent_bytes: int = 0
    state: int = 2

    @property
    def plain(self) -> bool:
        """Whether a token's bytes depend on its number of elements alone."""
        return not (self.per_head or self.latent_bytes) and self.block == 1

    def token_bytes(self, spec: CacheSpec) -> int:
        """Bytes of one more token in this layer, while it still grows."""
        size = self._head(spec.k_dim, spec) + self._head(spec.v_dim, spec)
        size *= spec.kv_heads
        if spec.latent:
            if self.latent_bytes:
                size += self.latent_bytes
            else:
                size += self._row(spec.latent + spec.rope, spec)
        return size + self._row(spec.index, spec)

    def bytes_for(self, spec: CacheSpec, tokens: int) -> int:
        """Bytes that one layer keeps for one sequence of `tokens` tokens, scales and states included."""
        if spec.kind in ("shared", "none", "cross"):
            return 0
        size = self.token_bytes(spec) * spec.tokens(tokens) if spec.per_token else 0
        return size + sum(self.state_bytes(state) for state in spec.states)

    def bytes(self, shape: CacheShape, tokens: int) -> int:
        """Bytes of all layers of one sequence, for dtypes whose bytes depend on the elements alone."""
        if not self.plain:
            raise FormatError(f"kv cache dtype {self.name} stores scales beside the elements: sum bytes_for(layer)")
        grown = shape.elements(tokens) - shape.states
        return grown * self.num // self.den + shape.states * self.state + shape.states_fp32 * 4

    def state_bytes(self, state: State) -> int:
        """Bytes of a state of fixed size."""
        return state.elements * (4 if state.fp32 else self.state)

    def _head(self, width: int, spec: CacheSpec) -> int:
        return self._row(width, spec) + self.per_head if width else 0

    def _row(self, width: int, spec: CacheSpec) -> int:
        if width % self.block or width * self.num % self.den:
            raise FormatError(
                f"kv cache dtype {self.name}: layer {spec.layer} has rows of {width}, which is not divisible "
                f"by its block of {max(self.block, self.den)}; use a 16-bit cache"
            )
        return width * self.num // self.den


_DTYPES = (
    KvDtype("bf16", "any", 2),
    KvDtype("fp16", "any", 2),
    KvDtype("fp32", "any", 4, state=4),
    # vLLM: one scale a layer, kept with the weights
    KvDtype("fp8", "vllm", 1),
    KvDtype("fp8_e4m3", "vllm", 1),
    KvDtype("fp8_e5m2", "vllm", 1),
)
_BY_NAME = {kind.name: kind for kind in _DTYPES}
_SYNONYMS = {"bfloat16": "bf16", "float16": "fp16", "f16": "fp16", "half": "fp16", "float32": "fp32", "f32": "fp32"}


def names() -> list[str]:
    """All KV cache dtypes."""
    return list(_BY_NAME)


def get(name: str) -> KvDtype:
    """The KV cache dtype of this name, in any case; `UnknownFormat` lists what is known."""
    plain = name.strip().lower()
    found = _BY_NAME.get(_SYNONYMS.get(plain, plain))
    if found is None:
        raise UnknownFormat(f"unknown kv cache dtype {name!r}; known are {', '.join(_BY_NAME)}")
    return found
