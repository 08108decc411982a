"""Gemma 3n's graph: several streams beside the residual (AltUp), LAuReL, an embedding a layer, sparse activations.

Source: llama.cpp v0.4.0 src/models/gemma3n.cpp.
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.decoder import Decoder
from membudget.engines.llama_cpp.compute.header import ComputeError, Layer
from membudget.engines.llama_cpp.compute.tape import T

#: Layers whose MLP keeps its largest activations alone (n_layer_sparsity).
_SPARSE = 10
#: Layers with cells of their own (n_layer_kv_from_start); those behind them read the last ones'.
_KEPT = 20


class AltUp(Decoder):
    """One stream is worked on, the others are predicted from it and corrected."""

    def run(self) -> None:
        """The streams are made of the embeddings, and merged before the head."""
        b, tape, tokens = self.b, self.tape, self.b.tokens
        shapes = self.header.shapes
        try:
            self.streams = shapes["altup_proj.weight"][0] + 1
            self.width = shapes["per_layer_proj_norm.weight"][0]
        except KeyError as error:
            raise ComputeError(f"{error.args[0]} is missing") from None
        x = b.embed()
        count = len(self.header.layers)
        table = tape.weight(self.width * count, self.header.vocab)
        chosen = tape.get_rows(table, tape.input(tokens, kind="I32"))
        chosen = tape.expand(tape.op("SCALE", tape.reshape(chosen, self.width, count, tokens)))
        x = tape.op("SCALE", x)
        own = tape.op("SCALE", tape.mul_mat(tape.weight(self.header.hidden, self.width * count), x))
        own = b.norm(tape.reshape(own, self.width, count, tokens), None, "per_layer_proj_norm")
        own = tape.op("SCALE", tape.op("ADD", own, chosen))
        self.each = tape.cont(tape.permute(own, 0, 2, 1, 3))
        self.positions = b.positions()
        self.memory()
        self.out = b.out_ids()
        others = tape.op("REPEAT", x, ne=(x.ne[0], tokens, self.streams - 1, 1))
        x = tape.concat(x, self.as_large(self.project(others), x), 2)
        for layer in self.header.layers:
            x = self.streamed(x, layer)
        b.head(tape.get_rows(self.merged(x), self.out))

    def project(self, x: T) -> T:
        """All streams but one through a matrix of their own."""
        hidden = self.header.hidden
        return self.tape.mul_mat(self.tape.weight(hidden, hidden, self.streams - 1), x)

    def as_large(self, x: T, like: T) -> T:
        """Scaled to the magnitude of `like`."""
        tape = self.tape

        def size(one: T) -> T:
            total = tape.op("SUM_ROWS", tape.op("SQR", one), ne=(1, *one.ne[1:]))
            return tape.op("SQRT", total)

        return tape.op("DIV", tape.op("MUL", x, size(like)), size(x))

    def merged(self, x: T) -> T:
        """The mean of all streams."""
        tape, hidden, tokens = self.tape, self.header.hidden, self.b.tokens
        first = tape.view(x, hidden, tokens)
        others = self.as_large(self.project(tape.view(x, hidden, tokens, self.streams - 1)), first)
        for _ in range(self.streams - 1):
            first = tape.op("ADD", first, tape.view(others, hidden, tokens))
        return tape.op("SCALE", first)

    def router(self, x: T, layer: Layer) -> T:
        """How much each stream counts."""
        b, tape = self.b, self.tape
        x = tape.op("SCALE", b.norm(x, layer, "altup_router_norm"))
        return tape.op("UNARY", tape.mul_mat(b.weight_of(layer, "altup_router.weight"), x))

    def streamed(self, x: T, layer: Layer) -> T:
        """Predict all streams, work on one, correct all."""
        b, tape, hidden, tokens, count = self.b, self.tape, self.header.hidden, self.b.tokens, self.streams
        turned = tape.cont(tape.permute(x, 1, 2, 0, 3))
        shares = self.router(tape.view(x, hidden, tokens), layer)
        shares = tape.mul_mat(b.weight_of(layer, "altup_predict_coef.weight"), shares)
        guess = tape.mul_mat(turned, tape.reshape(shares, count, count, tokens))
        guess = tape.op("ADD", tape.cont(tape.permute(guess, 0, 2, 1, 3)), x)
        worked = self.work(tape.view(guess, hidden, tokens), layer)
        missed = tape.op("SUB", worked, tape.view(guess, hidden, tokens))
        missed = tape.op("REPEAT", missed, ne=(hidden, tokens, count, 1))
        shares = tape.mul_mat(b.weight_of(layer, "altup_correct_coef.weight"), self.router(worked, layer))
        shares = tape.cont(tape.transpose(tape.op("SCALE", shares)), 1, tokens, count)
        fixed = tape.op("ADD", tape.op("MUL", missed, shares), guess)
        first = tape.op("MUL", tape.view(fixed, hidden, tokens), tape.weight(hidden))
        gate = tape.op("UNARY", tape.mul_mat(b.weight_of(layer, "inp_gate.weight"), first))
        gate = tape.op("MUL", gate, tape.view(self.each, self.width, tokens))
        more = b.norm(tape.mul_mat(b.weight_of(layer, "proj.weight"), gate), layer, "post_norm")
        others = tape.op("ADD", tape.view(fixed, hidden, tokens, count - 1), more)
        return tape.concat(tape.view(fixed, hidden, tokens), others, 2)

    def work(self, x: T, layer: Layer) -> T:
        """Attention and LAuReL side by side, then the MLP."""
        b, tape, header = self.b, self.tape, self.header
        normed = b.norm(x, layer, "attn_norm")
        heads, kv_heads = header.heads(layer)
        k_dim, v_dim = header.head_dims(layer)
        q = tape.reshape(tape.mul_mat(b.weight_of(layer, "attn_q.weight"), normed), k_dim, heads, b.tokens)
        q = b.rope(b.norm(q, layer, "attn_q_norm"), self.positions)
        k = v = None
        if layer.number < _KEPT:
            k = tape.reshape(tape.mul_mat(b.weight_of(layer, "attn_k.weight"), normed), k_dim, kv_heads, b.tokens)
            k = b.rope(b.norm(k, layer, "attn_k_norm"), self.positions)
            v = tape.reshape(tape.mul_mat(b.weight_of(layer, "attn_v.weight"), normed), v_dim, kv_heads, b.tokens)
            v = tape.op("RMS_NORM", v)
        cells = self.inputs[header.window(layer) and True in self.inputs]
        found = b.attend(cells, q, k, v, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, window=True)
        found = b.norm(tape.mul_mat(b.weight_of(layer, "attn_output.weight"), found), layer, "post_attention_norm")
        found = tape.op("ADD", found, x)
        low = tape.mul_mat(b.weight_of(layer, "laurel_l.weight"), normed)
        low = b.norm(tape.mul_mat(b.weight_of(layer, "laurel_r.weight"), low), layer, "laurel_post_norm")
        both = tape.op("SCALE", tape.op("ADD", found, tape.op("ADD", low, normed)))
        mlp = b.norm(both, layer, "ffn_norm")
        up = tape.mul_mat(b.weight_of(layer, "ffn_up.weight"), mlp)
        gate = tape.mul_mat(b.weight_of(layer, "ffn_gate.weight"), mlp)
        if layer.number < _SPARSE:
            gate = self.largest(gate)
        mlp = tape.op("MUL", up, tape.op("UNARY", gate))
        mlp = b.norm(tape.mul_mat(b.weight_of(layer, "ffn_down.weight"), mlp), layer, "post_ffw_norm")
        return tape.op("ADD", mlp, both)

    def largest(self, x: T) -> T:
        """What lies above the mean and some deviations."""
        tape, one = self.tape, (1, *x.ne[1:])
        mean = tape.op("MEAN", x, ne=one)
        off = tape.op("SUM_ROWS", tape.op("SQR", tape.op("SUB", x, mean)), ne=one)
        off = tape.op("SCALE", tape.op("SQRT", tape.op("SCALE", off)))
        return tape.op("UNARY", tape.op("SUB", x, tape.op("ADD", mean, off)))


__all__ = ["AltUp"]
