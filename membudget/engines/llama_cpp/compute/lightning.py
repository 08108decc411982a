"""MiniMax-01's graph: lightning attention, whose state decays by head and by token, beside plain attention.

Source: llama.cpp v0.4.0 src/models/minimax-01.cpp.
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.decoder import Decoder
from membudget.engines.llama_cpp.compute.header import Layer
from membudget.engines.llama_cpp.compute.states import Hybrid
from membudget.engines.llama_cpp.compute.tape import T


class Lightning(Hybrid):
    """Layers with attn_norm_2 keep a state; residuals are the normed inputs."""

    def memory(self) -> None:
        """States and cells, and the decays of a batch."""
        super().memory()
        tape, seqs, each = self.tape, self.b.seqs, self.each
        heads = max(self.header.list("attention.head_count"))
        self.q_decay, self.k_decay = (tape.input(1, heads, each, seqs) for _ in range(2))
        self.diagonal = tape.input(each, each, heads, seqs)
        self.slopes = tape.input(heads)

    def layer(self, x: T, layer: Layer, *, last: bool) -> T:
        """Attention and experts, each added to what it read."""
        b, tape = self.b, self.tape
        normed = b.norm(x, layer, "attn_norm")
        mixed = self.lightning(normed, layer) if layer.has("attn_norm_2.weight") else Decoder.mixer(self, normed, layer)
        inside = tape.op("ADD", self.rows(mixed, last), tape.op("SCALE", self.rows(normed, last)))
        normed = b.norm(inside, layer, "ffn_norm")
        return tape.op("ADD", self.mlp(normed, layer), tape.op("SCALE", normed))

    def decay(self, given: T) -> T:
        """An exponential of an input's multiple."""
        return self.tape.op("UNARY", self.tape.op("SCALE", given))

    def lightning(self, x: T, layer: Layer) -> T:
        """What the batch says, what the state says, and the new state."""
        b, tape, seqs, each = self.b, self.tape, self.b.seqs, self.each
        heads, width = self.header.heads(layer)[0], self.header.key("attention.key_length")
        states, state = self.load(width * width * heads)
        state = tape.reshape(state, width, width, heads, seqs)
        x = tape.reshape(x, x.ne[0], each, 1, seqs)
        joined = tape.op("UNARY", tape.mul_mat(b.weight_of(layer, "attn_qkv.weight"), x))
        q, k, v = (tape.view(joined, width, heads, each, seqs) for _ in range(3))
        past = tape.op("MUL", q, self.decay(self.q_decay))
        past = tape.mul_mat(state, tape.permute(past, 0, 2, 1, 3))
        values = tape.cont(tape.permute(v, 1, 2, 0, 3))
        scores = tape.mul_mat(tape.permute(k, 0, 2, 1, 3), tape.permute(q, 0, 2, 1, 3))
        scores = tape.op("MUL", scores, self.decay(self.diagonal))
        found = tape.expand(tape.op("ADD", past, tape.mul_mat(values, scores)))
        kept = tape.op("UNARY", tape.op("SCALE", tape.op("SCALE", self.slopes)))
        kept = tape.op("MUL", state, tape.reshape(kept, 1, 1, heads))
        keys = tape.op("MUL", k, self.decay(self.k_decay))
        keys = tape.cont(tape.permute(keys, 1, 2, 0, 3))
        new = tape.op("ADD", kept, tape.mul_mat(keys, values))
        tape.expand(tape.cpy(new, tape.view(states, width * width * heads * seqs)))
        gate = tape.op("UNARY", tape.mul_mat(b.weight_of(layer, "attn_gate.weight"), x))
        out = tape.cont(tape.permute(found, 0, 2, 1, 3))
        out = b.norm(tape.reshape(out, width * heads, each, 1, seqs), layer, "attn_norm_2")
        out = tape.mul_mat(b.weight_of(layer, "attn_output.weight"), tape.op("MUL", gate, out))
        return tape.reshape(out, out.ne[0], b.tokens)


__all__ = ["Lightning"]
