"""Graphs with recurrent states: Mamba 1 and 2, gated delta nets, short convolutions, beside attention or alone.

Source: llama.cpp v0.4.0 src/models/mamba-base.cpp, delta-net-base.cpp, qwen35.cpp, qwen3next.cpp, lfm2.cpp, jamba.cpp,
falcon-h1.cpp, granite-hybrid.cpp, nemotron-h.cpp, and src/llama-graph.cpp (build_rs).
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.decoder import Decoder
from membudget.engines.llama_cpp.compute.header import Layer
from membudget.engines.llama_cpp.compute.tape import T


class Hybrid(Decoder):
    """Layers with states beside layers with caches: which is which, the tensors tell."""

    attends = True

    def memory(self) -> None:
        """The states' order, then the caches' inputs."""
        self.rs = self.header_states()
        copies = self.tape.input(self.b.seqs, kind="I32")
        self.own, self.rest = self.tape.view(copies, self.b.seqs), self.tape.view(copies, 0)
        if self.attends:
            self.inputs[False] = self.b.cells(self.caches[False])
            layer = next((one for one in self.header.layers if self.header.heads(one)[1]), None)
            if layer is not None:
                self.b.rotations(self.inputs[False], *self.header.head_dims(layer))

    def header_states(self) -> int:
        """States a sequence: one, and one more a drafted token."""
        return 1 + self.b.settings.draft_max

    @property
    def each(self) -> int:
        """Tokens of one sequence in the batch."""
        return self.b.tokens // self.b.seqs

    def mixer(self, x: T, layer: Layer) -> T:
        """A state, or attention."""
        if layer.has("shortconv.conv.weight"):
            return self.short_conv(x, layer)
        if layer.has("ssm_conv1d.weight"):
            if layer.has("ssm_x.weight"):
                return self.mamba1(x, layer)
            if layer.has("attn_qkv.weight") or layer.has("ssm_ba.weight"):
                return self.delta_net(x, layer)
            return self.mamba2(x, layer)
        return super().mixer(x, layer)

    # -- states -----------------------------------------------------------------------------------

    def load(self, width: int) -> tuple[T, T]:
        """(all states of a layer, the batch's own): build_rs with rows read."""
        tape = self.tape
        states = tape.weight(width, self.b.seqs * self.rs, kind="F32")
        flat = self.zeroed(states)
        rows = tape.expand(tape.get_rows(flat, self.own))
        self.others(flat, states)
        return states, rows

    def others(self, flat: T, states: T) -> None:
        """States of sequences that are not in the batch; there are none in a whole one."""
        tape = self.tape
        none = tape.get_rows(flat, self.rest)
        tape.expand(tape.cpy(none, tape.view(states, states.ne[0], 0)))

    def zeroed(self, states: T) -> T:
        """The states, one cleared in place."""
        tape = self.tape
        flat = tape.reshape(states, *states.ne)
        tape.expand(tape.view(tape.view(flat, 0), 0, name="SCALE"))
        return flat

    def save(self, source: T, states: T, *ne: int) -> None:
        """Copy a view of `source` back into the states, once a kept state."""
        tape = self.tape
        for _ in range(min(self.each, self.rs)):
            view = tape.view(source, *ne)
            count = ne[0] * (ne[1] if len(ne) > 1 else 1) * (ne[2] if len(ne) > 2 else 1)
            tape.expand(tape.cpy(view, tape.view(states, count)))

    def scan(self, x: T, dt: T, b: T, c: T, state: int, width: int, heads: int) -> tuple[T, T]:
        """ssm_scan: outputs and the new states in one tensor; (it, all states)."""
        tape, seqs = self.tape, self.b.seqs
        states = tape.weight(state * width, seqs * self.rs, kind="F32")
        flat = self.zeroed(states)
        shaped = tape.reshape(flat, state, width // heads, heads, seqs * self.rs)
        total = width * self.each * seqs + self.rs * state * width * seqs
        a = tape.weight(1, heads)
        y = tape.op("SSM_SCAN", shaped, x, dt, a, b, c, self.own, ne=(total, 1, 1, 1))
        tape.expand(y)
        self.others(flat, states)
        return y, states

    def convolve(self, x: T, layer: Layer, kernel: int, channels: int, name: str = "ssm_conv1d") -> T:
        """The inputs of a convolution, its state before them, saved, and the convolution."""
        tape, seqs = self.tape, self.b.seqs
        states, own = self.load((kernel - 1) * channels)
        own = tape.reshape(own, kernel - 1, channels, seqs)
        joined = tape.concat(own, tape.transpose(x), 0)
        self.save(joined, states, kernel - 1, channels, seqs)
        out = tape.op("SSM_CONV", joined, tape.weight(kernel, channels), ne=(channels, self.each, seqs, 1))
        if layer.has(f"{name}.bias"):
            out = tape.op("ADD", out, tape.weight(channels))
        return out

    # -- layers -----------------------------------------------------------------------------------

    def mamba1(self, x: T, layer: Layer) -> T:
        """build_mamba_layer."""
        b, tape, header, seqs, each = self.b, self.tape, self.header, self.b.seqs, self.each
        inner, state, rank = (header.key(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
        x = tape.reshape(x, x.ne[0], each, seqs)
        both = tape.mul_mat(b.weight_of(layer, "ssm_in.weight"), x)
        x, z = tape.view(both, inner, each, seqs), tape.view(both, inner, each, seqs)
        x = tape.op("UNARY", self.convolve(x, layer, header.key("ssm.conv_kernel"), inner))
        parts = tape.mul_mat(b.weight_of(layer, "ssm_x.weight"), x)
        dt = tape.view(parts, rank, each, seqs)
        left, right = tape.view(parts, state, 1, each, seqs), tape.view(parts, state, 1, each, seqs)
        if layer.has("ssm_dt_norm.weight") or (header.arch == "mamba" and header.key("ssm.dt_b_c_rms", 0)):
            dt, left, right = (
                b.norm(part, layer, name)
                for part, name in ((dt, "ssm_dt_norm"), (left, "ssm_b_norm"), (right, "ssm_c_norm"))
            )
        dt = tape.mul_mat(b.weight_of(layer, "ssm_dt.weight"), dt)
        dt = tape.op("ADD", dt, tape.weight(inner))
        shaped = tape.reshape(x, 1, inner, each, seqs)
        y, states = self.scan(shaped, dt, left, right, state, inner, inner)
        self.save(y, states, state * inner * seqs)
        out = tape.view(y, inner, each, seqs)
        out = tape.op("ADD", out, tape.op("MUL", x, tape.weight(inner)))
        out = tape.glu(tape.cont(z), out)
        out = tape.mul_mat(b.weight_of(layer, "ssm_out.weight"), out)
        return tape.reshape(out, out.ne[0], b.tokens)

    def mamba2(self, x: T, layer: Layer) -> T:
        """build_mamba2_layer."""
        b, tape, header, seqs, each = self.b, self.tape, self.header, self.b.seqs, self.each
        inner, state, heads, groups = (
            header.key(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank", "group_count")
        )
        channels = inner + 2 * groups * state
        conv_states, own = self.load((header.key("ssm.conv_kernel") - 1) * channels)
        own = tape.reshape(own, header.key("ssm.conv_kernel") - 1, channels, seqs)
        whole = tape.mul_mat(b.weight_of(layer, "ssm_in.weight"), x)
        whole = tape.reshape(whole, whole.ne[0], each, seqs)
        z = tape.view(whole, inner // heads, heads, each, seqs)
        parts = tape.view(whole, channels, each, seqs)
        dt = tape.view(whole, heads, each, seqs)
        joined = tape.concat(own, tape.transpose(parts), 0)
        self.save(joined, conv_states, own.ne[0], channels, seqs)
        parts = tape.op("SSM_CONV", joined, tape.weight(4, channels), ne=(channels, each, seqs, 1))
        parts = tape.op("UNARY", tape.op("ADD", parts, tape.weight(channels)))
        x = tape.view(parts, inner // heads, heads, each, seqs)
        left, right = (tape.view(parts, state, groups, each, seqs) for _ in range(2))
        dt = tape.op("ADD", tape.cont(dt), tape.weight(heads))
        y, states = self.scan(x, dt, left, right, state, inner, heads)
        tape.expand(
            tape.cpy(
                tape.view(y, state * inner, seqs, min(each, self.rs)),
                tape.view(states, state * inner, seqs, min(each, self.rs)),
            )
        )
        out = tape.view(y, inner // heads, heads, each, seqs)
        out = tape.op("ADD", out, tape.op("MUL", x, tape.weight(1, heads)))
        out = tape.glu(tape.cont(z), out)
        if layer.has("ssm_norm.weight"):
            out = b.norm(tape.reshape(out, inner // groups, groups, each, seqs), layer, "ssm_norm")
        out = tape.reshape(out, inner, b.tokens)
        return tape.mul_mat(b.weight_of(layer, "ssm_out.weight"), out)

    #: keys' heads are repeated to as many as values'
    repeats = False

    def delta_net(self, x: T, layer: Layer) -> T:
        """build_layer_attn_linear, with the fused operation."""
        b, tape, header, seqs, each = self.b, self.tape, self.header, self.b.seqs, self.each
        inner, width, k_heads, v_heads = (
            header.key(f"ssm.{name}") for name in ("inner_size", "state_size", "group_count", "time_step_rank")
        )
        v_width = inner // v_heads
        mixed, z, beta, alpha = self.delta_inputs(x, layer, inner, width, k_heads, v_heads)
        gate = tape.op("UNARY", tape.op("ADD", alpha, tape.weight(v_heads)))
        gate = tape.reshape(tape.op("MUL", gate, tape.weight(v_heads)), 1, v_heads, each, seqs)
        channels = inner + 2 * k_heads * width
        kernel = header.key("ssm.conv_kernel")
        conv_states, own = self.load((kernel - 1) * channels)
        joined = tape.concat(tape.reshape(own, kernel - 1, channels, seqs), tape.transpose(mixed), 0)
        self.save(joined, conv_states, kernel - 1, channels, seqs)
        states, state = self.load(v_width * v_width * v_heads)
        state = tape.reshape(state, v_width, v_width, v_heads, seqs)
        out = tape.op("SSM_CONV", joined, tape.weight(kernel, channels), ne=(channels, each, seqs, 1))
        out = tape.op("UNARY", out)
        q, k = (tape.op("L2_NORM", tape.view(out, width, k_heads, each, seqs)) for _ in range(2))
        if self.repeats and k_heads != v_heads:
            q, k = (tape.op("REPEAT", one, ne=(width, v_heads // k_heads, k_heads, each * seqs)) for one in (q, k))
        v = tape.view(out, v_width, v_heads, each, seqs)
        rows = each * seqs + v_width * seqs * self.rs
        found = tape.op("GATED_DELTA_NET", q, k, v, gate, beta, state, ne=(v_width * v_heads, rows, 1, 1))
        result = tape.view(found, v_width, v_heads, each, seqs)
        kept = tape.view(found, v_width * v_width * v_heads, seqs, min(each, self.rs))
        tape.expand(tape.cpy(kept, tape.view(states, *kept.ne)))
        shaped = tape.reshape(z, v_width, v_heads, each, seqs)
        normed = b.norm(result, layer, "ssm_norm")
        out = tape.op("MUL", normed, tape.op("UNARY", shaped))
        out = tape.reshape(out, inner, each, seqs)
        out = tape.mul_mat(b.weight_of(layer, "ssm_out.weight"), out)
        return tape.reshape(out, out.ne[0], b.tokens)

    def delta_inputs(self, x: T, layer: Layer, inner: int, width: int, k_heads: int, v_heads: int) -> tuple[T, T, T, T]:
        """(queries, keys and values mixed; z; beta; alpha)."""
        b, tape, seqs, each = self.b, self.tape, self.b.seqs, self.each
        mixed = tape.mul_mat(b.weight_of(layer, "attn_qkv.weight"), x)
        mixed = tape.reshape(mixed, mixed.ne[0], each, seqs)
        z = tape.mul_mat(b.weight_of(layer, "attn_gate.weight"), x)
        beta = tape.mul_mat(b.weight_of(layer, "ssm_beta.weight"), x)
        beta = tape.op("UNARY", tape.reshape(beta, 1, v_heads, each, seqs))
        alpha = tape.mul_mat(b.weight_of(layer, "ssm_alpha.weight"), x)
        return mixed, z, beta, tape.reshape(alpha, v_heads, each, seqs)

    def short_conv(self, x: T, layer: Layer) -> T:
        """build_shortconv_block."""
        b, tape, seqs, each = self.b, self.tape, self.b.seqs, self.each
        kernel = self.header.key("shortconv.l_cache")
        x = tape.reshape(x, x.ne[0], each, seqs)
        parts = tape.mul_mat(b.weight_of(layer, "shortconv.in_proj.weight"), x)
        hidden = parts.ne[0] // 3
        left, middle, right = (tape.view(parts, hidden, each, seqs) for _ in range(3))
        product = tape.transpose(tape.op("MUL", left, right))
        states, own = self.load((kernel - 1) * hidden)
        joined = tape.concat(tape.reshape(own, kernel - 1, hidden, seqs), product, 0)
        self.save(joined, states, kernel - 1, hidden, seqs)
        out = tape.op("SSM_CONV", joined, tape.weight(kernel, hidden), ne=(hidden, each, seqs, 1))
        out = tape.mul_mat(b.weight_of(layer, "shortconv.out_proj.weight"), tape.op("MUL", middle, out))
        return tape.reshape(out, out.ne[0], b.tokens)


class States(Hybrid):
    """Mamba alone: no cache, no positions, no MLP."""

    attends = False

    def start(self) -> T:
        """Embeddings and the states' order."""
        x = self.b.embed()
        self.memory()
        self.out = self.b.out_ids()
        return x

    def layer(self, x: T, layer: Layer, *, last: bool) -> T:
        """A state around the residual."""
        mixed = self.mixer(self.b.norm(x, layer, "attn_norm"), layer)
        return self.tape.op("ADD", self.rows(mixed, last), self.rows(x, last))


class Delta(Hybrid):
    """Qwen3-Next and Qwen3.5: rows are chosen after the last norm."""

    def layer(self, x: T, layer: Layer, *, last: bool) -> T:
        """The norm is in the graph before the mixer."""
        b, tape = self.b, self.tape
        normed = tape.expand(b.norm(x, layer, "attn_norm"))
        inside = tape.op("ADD", self.mixer(normed, layer), x)
        mlp = self.mlp(b.norm(inside, layer, "post_attention_norm"), layer)
        return tape.op("ADD", mlp, inside)

    def run(self) -> None:
        """As a decoder, the rows of logits chosen last."""
        x = self.body(self.start())
        b, tape = self.b, self.tape
        x = tape.keep(tape.get_rows(tape.keep(b.norm(x, None, "output_norm")), self.out))
        tape.expand(tape.keep(tape.mul_mat(tape.weight(x.ne[0], self.header.vocab), x)))

    def mixer(self, x: T, layer: Layer) -> T:
        """Attention with a gate in the queries' projection."""
        if layer.has("ssm_conv1d.weight"):
            return super().mixer(x, layer)
        b, tape, header = self.b, self.tape, self.header
        heads, kv_heads = header.heads(layer)
        width = header.head_dims(layer)[0]
        both = tape.mul_mat(b.weight_of(layer, "attn_q.weight"), x)
        q = b.norm(tape.view(both, width, heads, b.tokens), layer, "attn_q_norm")
        k = tape.mul_mat(b.weight_of(layer, "attn_k.weight"), x)
        v = tape.mul_mat(b.weight_of(layer, "attn_v.weight"), x)
        k = b.norm(tape.reshape(k, width, kv_heads, b.tokens), layer, "attn_k_norm")
        gate = tape.cont(tape.view(both, width, heads, b.tokens), width * heads, b.tokens)
        v = tape.reshape(v, width, kv_heads, b.tokens)
        q, k = b.rope(q, self.positions), b.rope(k, self.positions)
        out = b.attend(self.inputs[False], q, k, v, kv_heads=kv_heads, k_dim=width, v_dim=width)
        out = tape.op("MUL", out, tape.op("UNARY", gate))
        return tape.mul_mat(b.weight_of(layer, "attn_output.weight"), out)


class JoinedDelta(Delta):
    """Qwen3-Next: beta and alpha of one projection; queries and keys are repeated for heads of values."""

    repeats = True

    def delta_inputs(self, x: T, layer: Layer, inner: int, width: int, k_heads: int, v_heads: int) -> tuple[T, T, T, T]:
        """(queries, keys and values mixed; z; beta; alpha)."""
        b, tape, seqs, each = self.b, self.tape, self.b.seqs, self.each
        mixed = tape.mul_mat(b.weight_of(layer, "attn_qkv.weight"), x)
        mixed = tape.reshape(mixed, mixed.ne[0], each, seqs)
        z = tape.mul_mat(b.weight_of(layer, "attn_gate.weight"), x)
        both = tape.reshape(tape.mul_mat(b.weight_of(layer, "ssm_ba.weight"), x), 2 * v_heads, each, seqs)
        part = (v_heads // k_heads, k_heads, each, seqs)
        beta = tape.op("UNARY", tape.cont(tape.view(both, *part)))
        alpha = tape.cont(tape.view(both, *part), v_heads, each, seqs)
        return mixed, z, tape.reshape(beta, 1, v_heads, each, seqs), alpha


class Parallel(Hybrid):
    """Falcon-H1: attention and Mamba 2 side by side, each with its own norm of the same input."""

    def layer(self, x: T, layer: Layer, *, last: bool) -> T:
        """Both, added, then an MLP."""
        b, tape = self.b, self.tape
        attended = Decoder.mixer(self, b.norm(x, layer, "attn_norm"), layer)
        mixed = self.mamba2(b.norm(x, layer, "attn_norm"), layer)
        inside = self.rows(tape.op("ADD", tape.op("ADD", attended, mixed), x), last)
        normed = tape.op("MUL", tape.op("RMS_NORM", inside), tape.weight(inside.ne[0]))
        return tape.op("ADD", self.mlp(normed, layer), inside)


class OneEach(Hybrid):
    """Nemotron-H: a layer is a state, attention or an MLP; rows are chosen after the last norm."""

    def start(self) -> T:
        """No positions."""
        x = self.b.embed()
        self.memory()
        self.out = self.b.out_ids()
        return x

    def layer(self, x: T, layer: Layer, *, last: bool) -> T:
        """One part around the residual."""
        normed = self.b.norm(x, layer, "attn_norm")
        if layer.has("ffn_up.weight") or layer.has("ffn_up_exps.weight"):
            part = self.mlp(normed, layer)
        else:
            part = self.mixer(normed, layer)
        return self.tape.op("ADD", part, x)

    def mlp(self, x: T, layer: Layer) -> T:
        """An MLP or a mixture; experts may work in a latent of fewer columns, the router and the shared one do not."""
        if not layer.has("ffn_latent_down.weight"):
            return super().mlp(x, layer)
        b, tape = self.b, self.tape
        scores = tape.mul_mat(b.weight_of(layer, "ffn_gate_inp.weight"), x)
        latent = tape.mul_mat(b.weight_of(layer, "ffn_latent_down.weight"), x)
        routed = tape.mul_mat(b.weight_of(layer, "ffn_latent_up.weight"), b.moe(latent, layer, scores=scores))
        return tape.op("ADD", routed, b.ffn(x, layer, "_shexp"))

    def qk(self, q: T, k: T, layer: Layer, *, normed: bool = False) -> tuple[T, T]:
        """No RoPE."""
        return q, k

    run = Delta.run
