"""Graphs with latent attention (MLA): one compressed row a token, keys and values in one; or expanded heads.

A file with ``attn_k_b`` and ``attn_v_b`` is attended to in the latent; one with ``attn_kv_b`` alone expands keys and
values for every head, and caches them.  Source: llama.cpp v0.4.0 src/models/deepseek2.cpp, minicpm3.cpp.
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.decoder import Decoder
from membudget.engines.llama_cpp.compute.header import Layer
from membudget.engines.llama_cpp.compute.parts import Cells
from membudget.engines.llama_cpp.compute.tape import T


class Latent(Decoder):
    """DeepSeek-V2, V3 and those like them."""

    @property
    def absorbed(self) -> bool:
        """Whether the file's tensors are those of attention in the latent."""
        return any(layer.has("attn_k_b.weight") for layer in self.header.layers)

    def memory(self) -> None:
        """One cache, of rows without values where they are latent."""
        self.inputs[False] = self.b.cells(self.caches[False], values=not self.absorbed)
        if not self.absorbed:
            layer = self.header.layers[0]
            self.b.rotations(self.inputs[False], *self.expanded(layer))

    def expanded(self, layer: Layer) -> tuple[int, int]:
        """(width of a key, of a value) of one expanded head."""
        header = self.header
        k = header.key("attention.key_length_mla", header.key("attention.key_length"))
        return k, header.key(
            "attention.value_length_mla",
            header.key("attention.value_length", header.hidden // max(header.list("attention.head_count"))),
        )

    def mask(self, layer: Layer) -> T | None:
        """Another mask than the cache's."""
        return None

    def query(self, x: T, layer: Layer) -> T:
        """Queries of all heads, through their own latent where there is one."""
        b, tape = self.b, self.tape
        if not layer.has("attn_q_a.weight"):
            return tape.mul_mat(b.weight_of(layer, "attn_q.weight"), x)
        x = tape.mul_mat(b.weight_of(layer, "attn_q_a.weight"), x)
        return tape.mul_mat(b.weight_of(layer, "attn_q_b.weight"), b.norm(x, layer, "attn_q_a_norm"))

    def mixer(self, x: T, layer: Layer) -> T:
        """Attention in the latent, or over expanded heads."""
        b, tape, header = self.b, self.tape, self.header
        heads, tokens = header.heads(layer)[0], b.tokens
        width = layer.shape("attn_kv_a_mqa.weight")[0]
        rank = layer.shape("attn_kv_a_norm.weight")[0]
        rope = width - rank
        k_dim, v_dim = self.expanded(layer)
        q = tape.reshape(self.query(x, layer), k_dim, heads, tokens)
        both = tape.mul_mat(b.weight_of(layer, "attn_kv_a_mqa.weight"), x)
        row = tape.view(both, rank, tokens)
        k_rope = self.turn(self.shared_key(tape.view(both, rope, 1, tokens), layer))
        row = b.norm(row, layer, "attn_kv_a_norm")
        cells = self.cells_of(layer)
        if self.absorbed:
            plain = tape.view(q, k_dim - rope, heads, tokens)
            turned = self.turn(tape.view(q, rope, heads, tokens))
            plain = tape.permute(plain, 0, 2, 1, 3)
            absorbed = tape.mul_mat(b.weight_of(layer, "attn_k_b.weight"), plain)
            q = tape.concat(tape.permute(absorbed, 0, 2, 1, 3), turned, 0)
            value = tape.reshape(row, rank, 1, tokens)
            k = tape.concat(value, k_rope, 0)
            out = b.attend(
                cells, q, k, value, kv_heads=1, k_dim=width, v_dim=rank,
                latent=b.weight_of(layer, "attn_v_b.weight"), mask=self.mask(layer),
            )  # fmt: skip
        else:
            both = tape.mul_mat(b.weight_of(layer, "attn_kv_b.weight"), row)
            plain = tape.view(both, k_dim - rope, heads, tokens)
            v = tape.cont(tape.view(both, v_dim, heads, tokens))
            q = b.rope(q, self.positions)
            k = tape.concat(plain, tape.op("REPEAT", k_rope, ne=(rope, heads, tokens, 1)), 0)
            out = b.attend(cells, q, k, v, kv_heads=heads, k_dim=k_dim, v_dim=v_dim)
        return self.output(out, x, layer)

    def cells_of(self, layer: Layer) -> Cells:
        """The cache that a layer reads."""
        return self.inputs[False]

    def turn(self, x: T) -> T:
        """Rotated by position."""
        return self.b.rope(x, self.positions)

    def shared_key(self, x: T, layer: Layer) -> T:
        """The key's part that all heads share, before it is rotated."""
        return x

    def output(self, out: T, x: T, layer: Layer) -> T:
        """What attention found, projected.  x: the layer's input."""
        return self.b.project(out, layer, "attn_output")
