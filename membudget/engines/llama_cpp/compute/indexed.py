"""Graphs of sparse attention: an indexer scores all cells, and attention reads the best ones (DSA).

The mask is built anew in each layer: all cells hidden, then those whose numbers are among the best shown.
Source: llama.cpp v0.4.0 src/models/deepseek32.cpp, glm-dsa.cpp, dots3note.cpp, src/llama-graph.cpp (build_attn of
k_dsa and k_dsa_iswa).
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.header import Layer
from membudget.engines.llama_cpp.compute.latent import Latent
from membudget.engines.llama_cpp.compute.parts import Cells
from membudget.engines.llama_cpp.compute.tape import T


class Indexed(Latent):
    """DeepSeek-V3.2 and GLM-5: latent attention to what an indexer chose; layers without one take the last choice."""

    #: the best cells' numbers, by the last indexer
    best: T | None = None

    def memory(self) -> None:
        """The latent cache, and the indexer's, whose mask is always in halves."""
        super().memory()
        b, tape = self.b, self.tape
        cells = self.inputs[False]
        self.indexed = b.cells(self.caches[False], values=False)
        if not b.settings.flash:
            mask = tape.input(cells.cells, b.tokens // cells.streams, 1, cells.streams, kind="F16")
            self.indexed.mask = mask
        width, size = self.header.key("attention.indexer.key_length"), 64
        while width % (2 * size) == 0:
            size *= 2
        self.rotation = tape.input(size, size)

    def mixer(self, x: T, layer: Layer) -> T:
        """The indexer's keys are stored first; its queries are made where the mask is."""
        b, tape = self.b, self.tape
        self.x = x
        if layer.has("indexer.attn_k.weight"):
            width = layer.shape("indexer.attn_k.weight")[0]
            k = tape.mul_mat(b.weight_of(layer, "indexer.attn_k.weight"), x)
            k = tape.reshape(b.norm(k, layer, "indexer.k_norm", op="NORM"), width, 1, b.tokens)
            k = tape.mul_mat(self.rotation, b.rope(k, self.positions))
            b.store(k, self.indexed, self.indexed.k_idxs, width, b.settings.cache_type_k)
        return super().mixer(x, layer)

    def query(self, x: T, layer: Layer) -> T:
        """The queries' latent is the indexer's, too."""
        b, tape = self.b, self.tape
        x = tape.mul_mat(b.weight_of(layer, "attn_q_a.weight"), x)
        self.latent = b.norm(x, layer, "attn_q_a_norm")
        return tape.mul_mat(b.weight_of(layer, "attn_q_b.weight"), self.latent)

    def mask(self, layer: Layer) -> T | None:
        """Cells that are not among the best are hidden."""
        tape = self.tape
        plain = self.inputs[False].mask
        cells, each, _, streams = plain.ne
        if layer.has("indexer.attn_k.weight"):
            self.best = self.choose(layer, cells, each, streams)
        if self.best is None:
            return None
        count = self.best.ne[0]
        shown = tape.op("FILL", tape.input(1, count, each, streams))
        hidden = tape.op("FILL", plain, kind=plain.type)
        rows = tape.view(hidden, 1, cells, each, streams)
        found = tape.set_rows(rows, shown, tape.view(self.best, count, each, streams))
        return tape.op("ADD", tape.view(found, *plain.ne), plain, kind=plain.type)

    def choose(self, layer: Layer, cells: int, each: int, streams: int) -> T:
        """The numbers of the best cells of each token."""
        b, tape, header = self.b, self.tape, self.header
        heads, width = header.key("attention.indexer.head_count"), header.key("attention.indexer.key_length")
        q = tape.mul_mat(b.weight_of(layer, "indexer.attn_q_b.weight"), self.latent)
        q = b.rope(tape.reshape(q, width, heads, b.tokens), self.positions)
        q = tape.view(tape.mul_mat(self.rotation, q), width, heads, each, streams)
        cache = tape.weight(width, cells, streams, kind=b.settings.cache_type_k.upper())
        k = tape.view(cache, width, 1, cells, streams)
        weights = tape.mul_mat(b.weight_of(layer, "indexer.proj.weight"), self.x)
        weights = tape.op("SCALE", tape.view(weights, heads, each, 1, streams))
        scores = tape.op("LIGHTNING_INDEXER", q, k, weights, self.indexed.mask, ne=(cells, each, 1, streams))
        count = min(cells, header.key("attention.indexer.top_k"))
        return tape.cont(tape.op("TOP_K", scores, ne=(count, each, 1, streams), kind="I32"))


class Dots3(Indexed):
    """dots3: windows with latents of their own size, a norm of the shared key, a gate a head."""

    def memory(self) -> None:
        """As above, and the windows' cells."""
        super().memory()
        self.inputs[True] = self.b.cells(self.caches[True], values=False)

    def slides(self, layer: Layer) -> bool:
        """Whether a layer has a window."""
        return bool(self.header.each("attention.sliding_window_pattern", layer))

    def cells_of(self, layer: Layer) -> Cells:
        """The windows' cells, or all."""
        return self.inputs[self.slides(layer)]

    def expanded(self, layer: Layer) -> tuple[int, int]:
        """Windows' heads are wider."""
        if not self.slides(layer):
            return super().expanded(layer)
        return self.header.key("attention.key_length_mla_swa"), self.header.key("attention.value_length_mla_swa")

    def mask(self, layer: Layer) -> T | None:
        """Windows read all of their cells."""
        return None if self.slides(layer) else super().mask(layer)

    def shared_key(self, x: T, layer: Layer) -> T:
        """Normed."""
        return self.b.norm(x, layer, "attn_k_norm")

    def output(self, out: T, x: T, layer: Layer) -> T:
        """Gated by head."""
        heads = self.header.heads(layer)[0]
        return self.b.project(self.gated(out, x, layer, heads, out.ne[0] // heads), layer, "attn_output")
