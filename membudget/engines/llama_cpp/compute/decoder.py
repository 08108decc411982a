"""Graphs of decoders whose layers attend and have an MLP or a mixture: most architectures, told apart by their tensors.

Source: llama.cpp v0.4.0 src/models/*.cpp.
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.header import Layer
from membudget.engines.llama_cpp.compute.parts import Build, Cells
from membudget.engines.llama_cpp.compute.tape import T

#: The residual of the MLP starts where attention's does.
PARALLEL = frozenset(("command-r", "cohere2", "cohere2moe", "falcon", "gptneox", "phi2"))
#: The embeddings are scaled once more after build_inp_embd.
SCALED = frozenset(("gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "minicpm", "minicpm3", "afmoe"))
#: Queries are scaled after RoPE.
SCALED_QUERIES = frozenset(("gemma", "gemma2", "gemma3", "phi2", "phi3"))
#: Sub-layers' outputs are scaled before they are added.
SCALED_RESIDUAL = frozenset(("granite", "granitemoe", "granite_swa", "granitehybrid", "minicpm", "minicpm3"))
#: Residuals are the first operand where they are added: they are computed first.
RESIDUAL_FIRST = frozenset(("jamba", "lfm2", "lfm2moe"))
#: The same of the MLP's alone.
MLP_RESIDUAL_FIRST = frozenset((*RESIDUAL_FIRST, "phi3", "phimoe"))
#: The wanted tokens' rows are chosen after the last layer.
ROWS_LAST = frozenset(("gpt-oss", "step35"))
#: The same after the last norm, whose result is an output, too.
NORM_THEN_ROWS = frozenset(("bailingmoe3", "cohere2moe", "gemma4", "hy-v3"))
#: RoPE in windows' layers alone.
WINDOW_ROPE = frozenset(("cohere2", "cohere2moe", "exaone4", "afmoe"))
#: No RoPE at all.
NO_ROPE = frozenset(("bloom", "gpt2", "jais", "mpt", "refact", "starcoder", "jamba"))


class Decoder:
    """One graph: `run` builds it whole."""

    def __init__(self, build: Build, caches: dict[bool, int]) -> None:
        self.b, self.header, self.caches = build, build.header, caches
        self.tape = build.tape
        self.inputs: dict[bool, Cells] = {}

    def run(self) -> None:
        """Embeddings, layers, head."""
        self.b.head(self.body(self.start()), self.out if self.header.arch in NORM_THEN_ROWS else None)

    def start(self) -> T:
        """Embeddings, positions, and the caches' inputs, in llama.cpp's order."""
        b, arch = self.b, self.header.arch
        x = b.embed()
        if arch in SCALED:
            x = self.tape.op("SCALE", x)
        if self.header.has("token_embd_norm.weight") and self.header.has("output_norm.weight"):
            x = b.norm(x, None, "token_embd_norm")
        self.positions = b.positions()
        if self.header.has("position_embd.weight"):
            table = self.tape.weight(self.header.hidden, self.header.key("context_length"))
            x = self.tape.op("ADD", x, self.tape.get_rows(table, self.positions))
        self.memory()
        self.out = b.out_ids()
        return x

    def memory(self) -> None:
        """The caches' inputs: full layers', then windows'."""
        for window in (False, True) if True in self.caches else (False,):
            self.inputs[window] = self.b.cells(self.caches[window])
        for window, cells in self.inputs.items():
            layer = next((one for one in self.header.layers if self.header.window(one) == window), None)
            if layer is not None:
                k_dim, v_dim = self.header.head_dims(layer)
                self.b.rotations(cells, k_dim, v_dim)

    def body(self, x: T) -> T:
        """All layers; of the last only the wanted tokens go on."""
        for layer in self.header.layers:
            x = self.layer(x, layer, last=layer.number == len(self.header.layers) - 1)
        return x

    def rows(self, x: T, last: bool) -> T:
        """The wanted tokens' rows, in the last layer."""
        return self.tape.get_rows(x, self.out) if last else x

    # -- a layer ----------------------------------------------------------------------------------

    def layer(self, x: T, layer: Layer, *, last: bool) -> T:
        """Attention and MLP around the residual."""
        b, tape, arch = self.b, self.tape, self.header.arch
        residual = x
        normed = b.norm(x, layer, "attn_norm") if layer.has("attn_norm.weight") or arch == "olmo" else x
        attended = self.mixer(normed, layer)
        last = last and arch not in NORM_THEN_ROWS
        late = arch in ROWS_LAST
        attended, residual = self.rows(attended, last and not late), self.rows(residual, last and not late)
        if arch in PARALLEL:
            own = layer.has("ffn_norm.weight")
            normed = b.norm(residual, layer, "ffn_norm") if own else self.rows(normed, last)
            mlp = self.mlp(normed, layer)
            if arch == "phi2":
                return tape.op("ADD", tape.op("ADD", attended, mlp), residual)
            return tape.op("ADD", tape.op("ADD", mlp, residual), attended)
        for name in ("post_attention_norm", "attn_post_norm"):
            if layer.has(f"{name}.weight") and self.norm_after_attention(layer):
                attended = b.norm(attended, layer, name)
        if arch in SCALED_RESIDUAL and self.scales():
            attended = tape.op("SCALE", attended)
        first = arch in RESIDUAL_FIRST
        inside = tape.op("ADD", *((residual, attended) if first else (attended, residual)))
        mlp = inside
        name = self.mlp_norm(layer)
        if name:
            mlp = b.norm(inside, layer, name)
        mlp = self.mlp(mlp, layer)
        if layer.has("post_ffw_norm.weight"):
            mlp = b.norm(mlp, layer, "post_ffw_norm")
        if arch in SCALED_RESIDUAL and self.scales():
            mlp = tape.op("SCALE", mlp)
        if layer.has("layer_output_scale.weight"):
            mlp = tape.op("ADD", mlp, inside)
            return self.rows(tape.op("MUL", mlp, tape.weight(1)), False)
        x = tape.op("ADD", *((inside, mlp) if arch in MLP_RESIDUAL_FIRST else (mlp, inside)))
        return self.rows(tape.keep(x), last) if last and late else x

    def scales(self) -> bool:
        """Whether residual_scale is a step."""
        return self.header.arch == "minicpm3" or self.header.scale("residual_scale") not in (0.0,)

    def norm_after_attention(self, layer: Layer) -> bool:
        """post_attention_norm is the MLP's own norm where there is no ffn_norm."""
        return layer.has("ffn_norm.weight") or layer.has("post_ffw_norm.weight")

    def mlp_norm(self, layer: Layer) -> str:
        """The norm before the MLP."""
        for name in ("ffn_norm", "attn_output_norm", "post_attention_norm"):
            if layer.has(f"{name}.weight") and not (name == "post_attention_norm" and self.norm_after_attention(layer)):
                return name
        return "ffn_norm" if layer.has("ffn_norm") or self.header.arch == "olmo" else ""

    def mixer(self, x: T, layer: Layer) -> T:
        """Attention, up to and with its output projection."""
        b, tape, arch, header = self.b, self.tape, self.header.arch, self.header
        heads, kv_heads = header.heads(layer)
        k_dim, v_dim = header.head_dims(layer)
        window = header.window(layer) and True in self.inputs
        gate_input = x
        flat = layer.has("attn_q_norm.weight") and layer.shape("attn_q_norm.weight")[0] != k_dim
        flat = flat and len(layer.shape("attn_q_norm.weight")) == 1
        q, k, v = b.qkv(x, layer, heads, kv_heads, k_dim, v_dim, flat=flat)
        if flat:  # normed over all heads together
            q = tape.reshape(b.norm(q, layer, "attn_q_norm"), k_dim, heads, b.tokens)
            k = tape.reshape(b.norm(k, layer, "attn_k_norm"), k_dim, kv_heads, b.tokens)
        q, k = self.qk(q, k, layer, normed=flat)
        if arch == "gemma4":
            v = tape.op("RMS_NORM", v)
        if arch in SCALED_QUERIES:
            q = tape.op("SCALE", q)
        out = b.attend(
            self.inputs[window], q, k, v, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, window=True in self.inputs,
            sinks=layer.has("attn_sinks.weight"),
        )  # fmt: skip
        if layer.has("attn_gate.weight"):
            out = self.gated(out, gate_input, layer, heads, v_dim)
        if layer.has("attn_sub_norm.weight"):
            out = b.norm(out, layer, "attn_sub_norm")
        return b.project(out, layer, "attn_output") if layer.has("attn_output.weight") else out

    def gated(self, out: T, x: T, layer: Layer, heads: int, v_dim: int) -> T:
        """Attention's output times a gate, an element or a head."""
        tape = self.tape
        weight = self.b.weight_of(layer, "attn_gate.weight")
        if weight.ne[1] != heads or self.header.arch == "afmoe":
            return tape.op("MUL", out, tape.op("UNARY", tape.mul_mat(weight, x)))
        shaped = tape.reshape(out, v_dim, heads, self.b.tokens)
        gate = tape.reshape(tape.op("UNARY", tape.mul_mat(weight, x)), 1, heads, self.b.tokens)
        return tape.reshape(tape.op("MUL", shaped, gate), v_dim * heads, self.b.tokens)

    def qk(self, q: T, k: T, layer: Layer, *, normed: bool = False) -> tuple[T, T]:
        """Norms and RoPE of queries and keys."""
        b, header = self.b, self.header
        found = []
        for x, name in ((q, "attn_q_norm"), (k, "attn_k_norm")):
            if layer.has(f"{name}.weight") and not normed:
                x = b.norm(x, layer, name)
            if header.arch not in NO_ROPE and not (header.arch in WINDOW_ROPE and not header.window(layer)):
                x = b.rope(x, self.positions)
            found.append(x)
        return found[0], found[1]

    def mlp(self, x: T, layer: Layer) -> T:
        """An MLP, a mixture, or both."""
        b, tape = self.b, self.tape
        if not layer.has("ffn_gate_inp.weight"):
            if layer.has("ffn_sub_norm.weight"):  # BitNet
                up = tape.mul_mat(b.weight_of(layer, "ffn_up.weight"), x)
                gate = tape.mul_mat(b.weight_of(layer, "ffn_gate.weight"), x)
                return b.project(b.norm(tape.glu(gate, up), layer, "ffn_sub_norm"), layer, "ffn_down")
            return b.ffn(x, layer) if layer.has("ffn_down.weight") else x
        routed = b.moe(x, layer)
        if not layer.has("ffn_down_shexp.weight"):
            return routed
        if layer.has("ffn_gate_inp_shexp.weight"):
            gate = tape.mul_mat(tape.weight(x.ne[0], 1), x)
            shared = b.ffn(x, layer, "_shexp")
            if self.header.arch == "qwen2moe":
                gate = tape.op("DIV", tape.op("UNARY", gate), gate)
            else:
                gate = tape.op("UNARY", gate)
            return tape.op("ADD", routed, tape.op("MUL", shared, gate))
        return tape.op("ADD", routed, b.ffn(x, layer, "_shexp"))


class Gemma4(Decoder):
    """A mixture beside an MLP, each with norms of its own; the router reads the residual."""

    def mlp_norm(self, layer: Layer) -> str:
        """Both have their own."""
        return "" if layer.has("ffn_gate_inp.weight") else super().mlp_norm(layer)

    def mlp(self, x: T, layer: Layer) -> T:
        """An MLP, and the mixture added to it."""
        if not layer.has("ffn_gate_inp.weight"):
            return super().mlp(x, layer)
        b, tape = self.b, self.tape
        dense = b.norm(b.ffn(b.norm(x, layer, "ffn_norm"), layer), layer, "post_ffw_norm_1")
        given = tape.op("MUL", tape.op("SCALE", tape.op("RMS_NORM", x)), tape.weight(x.ne[0]))
        scores = tape.mul_mat(b.weight_of(layer, "ffn_gate_inp.weight"), given)
        routed = b.moe(b.norm(x, layer, "pre_ffw_norm_2"), layer, scores=scores)
        return tape.op("ADD", dense, b.norm(routed, layer, "post_ffw_norm_2"))


class Deci(Decoder):
    """Layers without attention, with one linear layer in its place, or without an MLP."""

    def layer(self, x: T, layer: Layer, *, last: bool) -> T:
        """What the file has of the two."""
        b, tape = self.b, self.tape
        heads, kv_heads = self.header.heads(layer)
        inside = x
        if heads:
            normed = b.norm(x, layer, "attn_norm")
            mixed = self.mixer(normed, layer) if kv_heads else b.project(normed, layer, "attn_output")
            mixed, x = self.rows(mixed, last), self.rows(x, last)
            inside = tape.op("ADD", mixed, x)
        else:
            inside = self.rows(x, last)
        if not layer.has("ffn_down.weight"):
            return inside
        return tape.op("ADD", self.mlp(b.norm(inside, layer, "ffn_norm"), layer), inside)
