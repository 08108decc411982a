"""Graphs of Kimi Linear and Ling 3: gated delta nets with a gate an element (KDA), and latent attention between them.

Source: llama.cpp v0.4.0 src/models/kimi-linear.cpp, bailingmoe3.cpp.
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.header import Layer
from membudget.engines.llama_cpp.compute.latent import Latent
from membudget.engines.llama_cpp.compute.states import Hybrid
from membudget.engines.llama_cpp.compute.tape import T


class Kda(Hybrid, Latent):
    """Layers with ssm_conv1d_q keep a state, the others one latent row a token."""

    attends = False

    @property
    def plain(self) -> bool:
        """Kimi Linear's: no RoPE, the norm is in the graph before the mixer."""
        return self.header.arch == "kimi-linear"

    def memory(self) -> None:
        """The states' order, then the latent cache."""
        Hybrid.memory(self)
        Latent.memory(self)

    def turn(self, x: T) -> T:
        """Kimi Linear does not rotate."""
        return x if self.plain else super().turn(x)

    def mixer(self, x: T, layer: Layer) -> T:
        """A state, or attention in the latent."""
        if self.plain:
            self.tape.expand(x)
        return self.kda(x, layer) if layer.has("ssm_conv1d_q.weight") else Latent.mixer(self, x, layer)

    def output(self, out: T, x: T, layer: Layer) -> T:
        """Ling 3 has a gate a head."""
        if not layer.has("attn_gate.weight"):
            return super().output(out, x, layer)
        b, tape = self.b, self.tape
        heads = self.header.heads(layer)[0]
        width = out.ne[0] // heads
        gate = tape.mul_mat(b.weight_of(layer, "attn_gate.weight"), x)
        gate = tape.op("UNARY", tape.reshape(gate, 1, heads, b.tokens))
        gated = tape.op("MUL", tape.reshape(out, width, heads, b.tokens), gate)
        return b.project(tape.cont(gated, width * heads, b.tokens), layer, "attn_output")

    def kda(self, x: T, layer: Layer) -> T:
        """Three convolutions, the fused operation, a gated norm."""
        b, tape, seqs, each = self.b, self.tape, self.b.seqs, self.each
        heads, width = max(self.header.list("attention.head_count")), self.header.key("kda.head_dim")
        inner, kernel = heads * width, self.header.key("ssm.conv_kernel")
        states, own = self.load(3 * (kernel - 1) * inner)
        joined = []
        for name in "qkv":
            past = tape.view(own, kernel - 1, inner, seqs)
            now = tape.mul_mat(b.weight_of(layer, f"attn_{name}.weight"), x)
            both = tape.concat(past, tape.transpose(tape.reshape(now, inner, each, seqs)), 0)
            self.save(both, states, kernel - 1, inner, seqs)
            joined.append(both)
        matrices, state = self.load(width * width * heads)
        found = []
        for one in joined:
            out = tape.op("SSM_CONV", one, tape.weight(kernel, inner), ne=(inner, each, seqs, 1))
            out = tape.op("UNARY", tape.reshape(out, inner, b.tokens))
            found.append(tape.reshape(out, width, heads, each, seqs))
        q, k = (tape.op("L2_NORM", one) for one in found[:2])
        gate = self.gate(x, layer, heads, width)
        beta = tape.mul_mat(b.weight_of(layer, "ssm_beta.weight"), x)
        beta = tape.op("UNARY", tape.reshape(beta, 1, heads, each, seqs))
        rows = each * seqs + width * seqs * self.rs
        state = tape.reshape(state, width, width, heads, seqs)
        result = tape.op("GATED_DELTA_NET", q, k, found[2], gate, beta, state, ne=(inner, rows, 1, 1))
        kept = tape.view(result, width * width * heads, seqs, min(each, self.rs))
        tape.expand(tape.cpy(kept, tape.view(matrices, *kept.ne)))
        out = tape.cont(tape.view(result, width, heads, each, seqs))
        out = b.norm(tape.reshape(out, width, heads, b.tokens), layer, "ssm_norm")
        shape = tape.mul_mat(b.weight_of(layer, "ssm_g_a.weight"), x)
        if layer.has("ssm_g_b.weight"):
            shape = tape.mul_mat(b.weight_of(layer, "ssm_g_b.weight"), shape)
        shape = tape.op("UNARY", tape.reshape(shape, width, heads, b.tokens))
        out = tape.cont(tape.op("MUL", out, shape), inner, b.tokens)
        return tape.mul_mat(b.weight_of(layer, "attn_output.weight"), out)

    def gate(self, x: T, layer: Layer, heads: int, width: int) -> T:
        """How much of the state each element keeps."""
        b, tape = self.b, self.tape
        gate = tape.mul_mat(b.weight_of(layer, "ssm_f_a.weight"), x)
        if layer.has("ssm_f_b.weight"):
            gate = tape.mul_mat(b.weight_of(layer, "ssm_f_b.weight"), gate)
        gate = tape.op("ADD", gate, tape.weight(heads * width))
        if self.plain:
            gate = tape.reshape(tape.op("UNARY", gate), width, heads, b.tokens)
            gate = tape.op("MUL", gate, tape.weight(1, heads))
        else:
            gate = tape.op("MUL", tape.reshape(gate, width, heads, b.tokens), tape.weight(1, heads))
            gate = tape.op("SCALE", tape.op("UNARY", gate))
        return tape.reshape(gate, width, heads, self.each, b.seqs)


__all__ = ["Kda"]
