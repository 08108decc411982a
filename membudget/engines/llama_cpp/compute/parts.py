"""The parts that llama.cpp's graphs are made of: norms, attention over caches, MLPs, mixtures.

Source: llama.cpp v0.4.0 src/llama-graph.cpp (build_norm, build_qkv, build_ffn, build_moe_ffn, build_attn,
build_attn_mha) and src/llama-kv-cache.cpp (cpy_k, cpy_v, get_k, get_v, build_input_*).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from membudget.engines.llama_cpp.compute.header import Header, Layer
from membudget.engines.llama_cpp.compute.tape import T, Tape
from membudget.engines.llama_cpp.settings import Settings

_QUANTIZED = ("q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass
class Cells:
    """One cache's inputs: where rows are written, the mask, and rotations of quantized keys and values."""

    #: cells of one stream, and streams
    cells: int
    streams: int
    k_idxs: T
    v_idxs: T | None
    mask: T
    k_rot: T | None = None
    v_rot: T | None = None


@dataclass
class Build:
    """A graph under construction and what its parts ask for."""

    header: Header
    settings: Settings
    #: tokens of the batch, sequences in it, rows of logits
    tokens: int
    seqs: int
    outputs: int
    tape: Tape = field(default_factory=Tape)

    # -- inputs -----------------------------------------------------------------------------------

    def embed(self) -> T:
        """The tokens' embeddings: rows of the table, beside an input for embeddings that are given as such."""
        tape, hidden = self.tape, self.header.hidden
        width = self.header.key("n_embd_inp", hidden)
        ids = tape.input(self.tokens, kind="I32")
        given = tape.input(width, self.tokens)
        rows = tape.get_rows(tape.weight(hidden, self.header.vocab), ids)
        if width != hidden:
            rows = tape.op("PAD", rows, ne=(width, self.tokens, 1, 1))
        tape.expand(rows)
        tape.expand(given)
        if width != hidden:
            rows = tape.view(rows, hidden, self.tokens)
        if self.header.scale("embedding_scale"):
            rows = tape.op("SCALE", rows)
        return tape.expand(rows)

    def positions(self) -> T:
        """One position a token; four where RoPE has sections."""
        return self.tape.input(self.tokens * self.header.positions, kind="I32")

    def cells(self, cells: int, *, values: bool = True) -> Cells:
        """The inputs of one cache of keys, and values unless they lie in the keys."""
        tape, one = self.tape, self.settings
        streams = 1 if one.unified else self.seqs
        k_idxs = tape.input(self.tokens, kind="I64")
        v_idxs = None
        if values:
            width = 1 if one.flash else self.header.v_width_max
            v_idxs = tape.input(self.tokens * width, kind="I64")
        mask = tape.input(cells, self.tokens // streams, 1, streams, kind="F16" if one.flash else "F32")
        return Cells(cells, streams, k_idxs, v_idxs, mask)

    def rotations(self, cells: Cells, k_dim: int, v_dim: int, *, values: bool = True) -> Cells:
        """Hadamard matrices for quantized keys and values whose heads are made of 64 columns."""
        if self.settings.cache_type_k in _QUANTIZED and k_dim and k_dim % 64 == 0:
            size = 64
            while k_dim % (2 * size) == 0:
                size *= 2
            cells.k_rot = self.tape.input(size, size)
        if values and self.settings.cache_type_v in _QUANTIZED and v_dim and v_dim % 64 == 0:
            cells.v_rot = self.tape.input(64, 64)
        return cells

    def out_ids(self) -> T:
        """Which tokens' logits are wanted."""
        return self.tape.input(self.outputs, kind="I32")

    # -- small parts ------------------------------------------------------------------------------

    def norm(self, x: T, layer: Layer | None, name: str, *, op: str | None = None) -> T:
        """A norm with the weight and bias that the file has."""
        tape = self.tape
        x = tape.op(op or self.header.norm_op, x)
        has = layer.has if layer else self.header.has
        if has(f"{name}.weight"):
            x = tape.op("MUL", x, tape.weight(x.ne[0]))
        if has(f"{name}.bias"):
            x = tape.op("ADD", x, tape.weight(x.ne[0]))
        return x

    def project(self, x: T, layer: Layer, name: str) -> T:
        """A linear layer with the bias that the file has."""
        tape = self.tape
        x = tape.mul_mat(self.weight_of(layer, f"{name}.weight"), x)
        if layer.has(f"{name}.bias"):
            x = tape.op("ADD", x, tape.weight(x.ne[0]))
        return x

    def weight_of(self, layer: Layer, name: str) -> T:
        """A layer's tensor."""
        return self.tape.weight(*layer.shape(name)[::-1])

    def rope(self, x: T, positions: T) -> T:
        """Rotated by position."""
        return self.tape.op("ROPE", x, positions)

    def hadamard(self, x: T, rotation: T) -> T:
        """Rotated by a Hadamard matrix."""
        tape, size = self.tape, rotation.ne[0]
        total = x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3]
        node = tape.nodes[x.number]
        if node.op == "VIEW" and tape.nodes[node.view].nbytes > node.nbytes:
            x = tape.cont(x, *x.ne)  # a part of a joined projection
        turned = tape.mul_mat(rotation, tape.reshape(x, size, total // size))
        return tape.reshape(turned, *x.ne)

    # -- attention --------------------------------------------------------------------------------

    def qkv(
        self, x: T, layer: Layer, heads: int, kv_heads: int, k_dim: int, v_dim: int, *, flat: bool = False
    ) -> tuple[T, T, T]:
        """Queries, keys and values by heads; flat: queries and keys as they are projected."""
        tape = self.tape
        clamp = bool(self.header.scale("attention.clamp_kqv"))
        if layer.has("attn_qkv.weight"):
            joined = self.project(x, layer, "attn_qkv")
            if clamp:
                joined = tape.op("CLAMP", joined)
            return (
                tape.view(joined, k_dim, heads, self.tokens),
                tape.view(joined, k_dim, kv_heads, self.tokens),
                tape.view(joined, v_dim, kv_heads, self.tokens),
            )
        found: list[T] = []
        for name in ("attn_q", "attn_k", "attn_v"):
            if name == "attn_v" and not layer.has("attn_v.weight"):  # Gemma 4: keys before their norm
                found.append(found[1])
                continue
            one = self.project(x, layer, name)
            found.append(tape.op("CLAMP", one) if clamp else one)
        q, k, v = found
        if flat:
            return q, k, tape.reshape(v, v_dim, kv_heads, self.tokens)
        return (
            tape.reshape(q, k_dim, heads, self.tokens),
            tape.reshape(k, k_dim, kv_heads, self.tokens),
            tape.reshape(v, v_dim, kv_heads, self.tokens),
        )

    def store(self, row: T, cells: Cells, ids: T, width: int, kind: str) -> None:
        """Write a batch's rows into the cache."""
        tape = self.tape
        cache = tape.weight(width, cells.cells, cells.streams, kind=kind.upper())
        flat = tape.view(row, width, self.tokens)
        if cells.streams > 1:
            cache = tape.reshape(cache, width, cells.cells * cells.streams)
        tape.expand(tape.set_rows(cache, flat, ids))

    def store_values(self, v: T, cells: Cells, width: int) -> None:
        """Write values: rows with flash attention, single elements of a transposed cache without."""
        assert cells.v_idxs is not None
        if self.settings.flash:
            self.store(v, cells, cells.v_idxs, width, self.settings.cache_type_v)
            return
        tape = self.tape
        own = v.ne[0] * v.ne[1]
        whole = self.tape.nodes[v.number].op in ("RESHAPE", "ROPE", "MUL", "RMS_NORM", "ADD")
        flat = tape.reshape(v, own, self.tokens) if whole else tape.cont(v, own, self.tokens)
        if own < width:
            flat = tape.op("PAD", flat, ne=(width, self.tokens, 1, 1))
        cache = tape.weight(1, width * cells.cells * cells.streams, kind=self.settings.cache_type_v.upper())
        flat = tape.reshape(flat, 1, width * self.tokens)
        tape.expand(tape.set_rows(tape.reshape(cache, *cache.ne), flat, cells.v_idxs))

    def attend(
        self, cells: Cells, q: T, k: T | None, v: T | None, *, kv_heads: int, k_dim: int, v_dim: int,
        latent: T | None = None, window: bool = False, sinks: bool = False, mask: T | None = None,
    ) -> T:  # fmt: skip
        """Attention over a cache, up to where the output projection reads it.

        latent: MLA's decompression, with keys that hold the values too.  k, v: None where another layer's is read.
        """
        tape = self.tape
        if cells.k_rot:
            q = self.hadamard(q, cells.k_rot)
            k = self.hadamard(k, cells.k_rot) if k else None
        if cells.v_rot and v:
            v = self.hadamard(v, cells.v_rot)
        for one in (q, k, v) if window else (q, v, k):
            if one:
                tape.expand(one)
        if k:
            self.store(k, cells, cells.k_idxs, k_dim * kv_heads, self.settings.cache_type_k)
        own = latent is None and cells.v_idxs is not None
        if v and own:
            self.store_values(v, cells, self.header.v_width(v_dim * kv_heads))
        key_cache = tape.weight(k_dim * kv_heads, cells.cells, cells.streams, kind=self.settings.cache_type_k.upper())
        keys = tape.view(key_cache, k_dim, kv_heads, cells.cells, cells.streams)
        kind = self.settings.cache_type_v.upper()
        if not own:
            values = tape.view(keys, v_dim, kv_heads, cells.cells, cells.streams)
        elif self.settings.flash:
            cache = tape.weight(v_dim * kv_heads, cells.cells, cells.streams, kind=kind)
            values = tape.view(cache, v_dim, kv_heads, cells.cells, cells.streams)
        else:
            cache = tape.weight(cells.cells, v_dim * kv_heads, cells.streams, kind=kind)
            values = tape.view(cache, cells.cells, kv_heads, v_dim, cells.streams)
        x = self.mha(q, keys, values, cells, latent, transposed=own and not self.settings.flash, sinks=sinks, mask=mask)
        return self.hadamard(x, cells.v_rot) if cells.v_rot else x

    def mha(
        self, q: T, k: T, v: T, cells: Cells, latent: T | None, *, transposed: bool, sinks: bool = False,
        mask: T | None = None,
    ) -> T:  # fmt: skip
        """build_attn_mha."""
        tape = self.tape
        mask = mask or cells.mask
        streams = k.ne[3]
        q = tape.view(q, q.ne[0], q.ne[1], q.ne[2] // streams, streams)
        q, k, v = (tape.permute(x, 0, 2, 1, 3) for x in (q, k, v))
        extra = (tape.weight(q.ne[2]),) if sinks else ()
        if self.settings.flash:
            x = tape.op("FLASH_ATTN_EXT", q, k, v, mask, *extra, ne=(v.ne[0], q.ne[2], q.ne[1], q.ne[3]))
            if latent:
                x = tape.mul_mat(latent, tape.permute(x, 0, 2, 1, 3))
                x = tape.cont(tape.permute(x, 0, 2, 1, 3))
            x = tape.reshape(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
            return tape.expand(x)
        scores = tape.mul_mat(k, q)
        if self.header.scale("attn_logit_softcapping"):
            scores = tape.op("SCALE", tape.op("UNARY", tape.op("SCALE", scores)))
        scores = tape.op("SOFT_MAX", scores, mask, *extra)
        if not transposed:
            v = tape.cont(tape.transpose(v))
        x = tape.mul_mat(v, scores)
        if latent:
            x = tape.mul_mat(latent, x)
        x = tape.permute(x, 0, 2, 1, 3)
        x = tape.cont(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
        return tape.expand(x)

    # -- MLPs -------------------------------------------------------------------------------------

    def ffn(self, x: T, layer: Layer, suffix: str = "", *, sequential: bool = False) -> T:
        """build_ffn: with a gate where the file has one, in one tensor or two."""
        tape, act = self.tape, self.header.activation
        up = self.project(x, layer, f"ffn_up{suffix}")
        if layer.has(f"ffn_gate{suffix}.weight"):
            gate = self.project(x, layer, f"ffn_gate{suffix}")
            hidden = tape.glu(gate, up)
        elif act == "glu":
            hidden = tape.glu(up)
        else:
            hidden = tape.op("UNARY", up)
            if act == "relu_sqr":
                hidden = tape.op("SQR", hidden)
        return self.project(hidden, layer, f"ffn_down{suffix}")

    def moe(self, x: T, layer: Layer, *, scores: T | None = None, gate_input: T | None = None) -> T:
        """build_moe_ffn."""
        tape, header = self.tape, self.header
        hidden, tokens = x.ne[0], x.ne[1]
        used, experts = header.experts_used(layer), header.experts
        logits = scores or tape.mul_mat(tape.weight((gate_input or x).ne[0], experts), gate_input or x)
        if layer.has("ffn_gate_inp.bias"):
            logits = tape.op("ADD", logits, tape.weight(experts))
        gating = header.gating
        probs = logits
        if gating == "softmax":
            probs = tape.op("SOFT_MAX", logits)
        elif gating == "sigmoid":
            probs = tape.op("UNARY", logits)
        elif gating == "sqrt_softplus":
            probs = tape.op("SQRT", tape.op("UNARY", logits))
        selection = probs
        if layer.has("exp_probs_b.bias") or layer.has("exp_probs_b"):
            selection = tape.op("ADD", probs, tape.weight(experts))
        if header.arch == "llama4":
            selection = logits
        if header.groups > 1:
            selection = self._grouped(selection, experts, tokens)
        chosen = tape.top_k(selection, used)
        weights = tape.get_rows(tape.reshape(probs, 1, experts, tokens), chosen)
        weights = weights._replace(ne=(1, used, tokens, 1))
        if gating == "softmax_weight":
            weights = tape.reshape(tape.op("SOFT_MAX", tape.reshape(weights, used, tokens)), 1, used, tokens)
        if header.norm_weights:
            flat = tape.reshape(weights, used, tokens)
            total = tape.op("CLAMP", tape.op("SUM_ROWS", flat, ne=(1, tokens, 1, 1)))
            weights = tape.reshape(tape.op("DIV", flat, total), 1, used, tokens)
        if header.weights_scale not in (0.0, 1.0):
            weights = tape.op("SCALE", weights)
        tape.expand(weights)
        x = tape.reshape(x, hidden, 1, tokens)
        if header.arch == "llama4":
            x = tape.op("MUL", tape.op("REPEAT", x, ne=(hidden, used, tokens, 1)), weights)
        out = self._experts(x, layer, chosen, weights)
        tape.expand(out)
        views = [tape.expand(tape.view(out, out.ne[0], tokens)) for _ in range(used)]
        total = views[0]
        for one in views[1:]:
            total = tape.expand(tape.op("ADD", total, one))
        return tape.cont(total) if used == 1 else total

    def _grouped(self, scores: T, experts: int, tokens: int) -> T:
        """Only the best groups' experts may be chosen."""
        tape, groups, kept = self.tape, self.header.groups, self.header.groups_used
        each = experts // groups
        grouped = tape.reshape(scores, each, groups, tokens)
        best = tape.top_k(grouped, 2)
        rows = tape.get_rows(tape.reshape(grouped, 1, each, groups, tokens), best)
        total = tape.op("SUM_ROWS", tape.reshape(rows, 2, groups, tokens), ne=(1, groups, tokens, 1))
        chosen = tape.top_k(tape.reshape(total, groups, tokens), kept)
        left = tape.get_rows(grouped, chosen)
        masked = tape.set_rows(tape.op("FILL", grouped), left, chosen)
        return tape.reshape(masked, experts, tokens)

    def _experts(self, x: T, layer: Layer, chosen: T, weights: T) -> T:
        tape, act = self.tape, self.header.activation

        def by_id(name: str, source: T) -> T:
            found = tape.mul_mat_id(self.weight_of(layer, f"{name}.weight"), source, chosen)
            if layer.has(f"{name}.bias"):
                found = tape.op("ADD_ID", found, tape.weight(found.ne[0], self.header.experts), chosen)
            return found

        if layer.has("ffn_gate_up_exps.weight"):
            joined = by_id("ffn_gate_up_exps", x)
            half = (joined.ne[0] // 2, *joined.ne[1:])
            gate, up = tape.view(joined, *half), tape.view(joined, *half)
            hidden = tape.glu(gate, up)
        else:
            up = by_id("ffn_up_exps", x)
            if layer.has("ffn_gate_exps.weight"):
                hidden = self._limited(by_id("ffn_gate_exps", x), up, layer)
            else:
                hidden = tape.op("UNARY", up)
                if act == "relu_sqr":
                    hidden = tape.op("SQR", hidden)
        out = by_id("ffn_down_exps", hidden)
        if layer.has("ffn_down_exps.scale"):
            scales = tape.op("REPEAT", tape.weight(1, self.header.experts), ne=(1, self.header.experts, x.ne[2], 1))
            chosen_scales = tape.get_rows(scales, chosen)._replace(ne=(1, chosen.ne[0], x.ne[2], 1))
            out = tape.op("MUL", out, chosen_scales)
        return out if self.header.arch == "llama4" else tape.op("MUL", out, weights)

    def _limited(self, gate: T, up: T, layer: Layer) -> T:
        """A gated activation, its parts clamped first where the file has limits."""
        tape, limits = self.tape, self.header.list("swiglu_clamp_exp")
        if not limits or limits[layer.number] <= 1e-6 or self.header.arch == "deepseek4":
            return tape.glu(gate, up)
        up = tape.op("CLAMP", up)
        return tape.op("MUL", tape.op("CLAMP", tape.op("UNARY", gate)), up)

    # -- the end ----------------------------------------------------------------------------------

    def head(self, x: T, rows: T | None = None) -> None:
        """The last norm and the logits, and the graph's end.  rows: those wanted, chosen after the norm."""
        tape, header = self.tape, self.header
        x = self.norm(x, None, "output_norm" if header.has("output_norm.weight") else header.last_norm)
        tape.keep(x)
        if rows is not None:
            x = tape.keep(tape.get_rows(x, rows))
        if header.arch == "minicpm3":
            x = tape.op("SCALE", x)
        x = tape.mul_mat(tape.weight(x.ne[0], header.vocab), x)
        if header.has("output.bias"):
            x = tape.op("ADD", x, tape.weight(header.vocab))
        if header.scale("logit_scale") and header.scales_logits:
            x = tape.op("SCALE", x)
        if header.scale("final_logit_softcapping"):
            x = tape.op("SCALE", tape.op("UNARY", tape.op("SCALE", x)))
        tape.expand(tape.keep(x))


__all__ = ["Build", "Cells"]
