"""Runs a real libllama on a GGUF file in a process of its own and prints its answers as JSON, one a line.

    python child.py < job.json

The job: ``library`` (folder of the shared objects), ``version`` (what it must be), ``model`` (arguments of
llama_model_params and ``file``), ``questions`` (arguments of llama_context_params, one context each).
Answers have the process's resident bytes: before loading, and with a context.
The structs are those of llama.cpp v0.4.0 include/llama.h; nothing is called before the version is checked.
Only the standard library is used here: an assertion of ggml ends the process, and the parent reads what was printed.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys
from typing import Any

P, I32, U32, F, B, Z = c.c_void_p, c.c_int32, c.c_uint32, c.c_float, c.c_bool, c.c_size_t


# An assertion of ggml would start a debugger to print a trace.
os.environ["GGML_NO_BACKTRACE"] = "1"
# What the library itself prints goes to stderr; answers have the first stdout to themselves.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class ModelParams(c.Structure):
    """llama_model_params."""

    _fields_ = (
        ("devices", P), ("tensor_buft_overrides", P), ("n_gpu_layers", I32), ("split_mode", I32), ("load_mode", I32),
        ("lazy_mode", I32), ("main_gpu", I32), ("tensor_split", P), ("progress_callback", P), ("progress_data", P),
        ("kv_overrides", P), ("vocab_only", B), ("check_tensors", B), ("use_extra_bufts", B), ("no_host", B),
        ("no_alloc", B), ("load_mtp", B),
    )  # fmt: skip


class ContextParams(c.Structure):
    """llama_context_params."""

    _fields_ = (
        *((name, U32) for name in (
            "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq")),
        *((name, I32) for name in (
            "n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type", "attention_type",
            "flash_attn_type")),
        *((name, F) for name in (
            "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
            "yarn_beta_slow")),
        ("yarn_orig_ctx", U32), ("defrag_thold", F), ("cb_eval", P), ("cb_eval_data", P), ("type_k", I32),
        ("type_v", I32), ("abort_callback", P), ("abort_data", P),
        *((name, B) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
        ("samplers", P), ("n_samplers", Z), ("ctx_other", P),
    )  # fmt: skip


class QuantizeParams(c.Structure):
    """llama_model_quantize_params."""

    _fields_ = (
        ("nthread", I32), ("ftype", I32), ("output_tensor_type", I32), ("token_embedding_type", I32),
        *((name, B) for name in (
            "allow_requantize", "quantize_output_tensor", "only_copy", "pure", "keep_split", "dry_run")),
        ("imatrix", P), ("kv_overrides", P), ("tt_overrides", P), ("prune_layers", P), ("max_buf_size", Z),
    )  # fmt: skip


class Override(c.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = (("pattern", c.c_char_p), ("buft", P))


class Tensor(c.Structure):
    """ggml_tensor."""


Tensor._fields_ = (
    ("type", I32), ("buffer", P), ("ne", c.c_int64 * 4), ("nb", Z * 4), ("op", I32), ("op_params", I32 * 16),
    ("flags", I32), ("src", c.POINTER(Tensor) * 10), ("view_src", c.POINTER(Tensor)), ("view_offs", Z), ("data", P),
    ("name", c.c_char * 64), ("extra", P), ("padding", c.c_char * 8),
)  # fmt: skip


class Library:
    """The loaded library; its log lines are kept in `lines` until they are taken."""

    def __init__(self, folder: str, version: str) -> None:
        names = os.listdir(folder)
        self.base = c.CDLL(os.path.join(folder, "libggml-base.so"), mode=c.RTLD_GLOBAL)
        ggml = next(name for name in sorted(names) if name.startswith("libggml.") and name.endswith(".so"))
        llama = next(name for name in sorted(names) if name.startswith("libllama.") and name.endswith(".so"))
        self.ggml = c.CDLL(os.path.join(folder, ggml), mode=c.RTLD_GLOBAL)
        self.llama = c.CDLL(os.path.join(folder, llama))
        self._check(version)
        self.lines: list[str] = []
        self._said = c.CFUNCTYPE(None, I32, c.c_char_p, P)(self._hear)
        self.llama.llama_log_set(self._said, None)
        self.ggml.ggml_backend_load_all_from_path(folder.encode())
        returns = {
            "llama_model_load_from_file": (P, [c.c_char_p, ModelParams]),
            "llama_init_from_model": (P, [P, ContextParams]),
            "llama_model_default_params": (ModelParams, []),
            "llama_context_default_params": (ContextParams, []),
            "llama_model_quantize_default_params": (QuantizeParams, []),
            "llama_model_quantize": (U32, [c.c_char_p, c.c_char_p, c.POINTER(QuantizeParams)]),
            "llama_free": (None, [P]),
            "llama_model_free": (None, [P]),
        }
        for name, (result, arguments) in returns.items():
            function = getattr(self.llama, name)
            function.restype, function.argtypes = result, arguments

    def _check(self, version: str) -> None:
        try:
            said = self.llama.llama_version
        except AttributeError:
            refuse("an older build, without llama_version()")
        said.restype = c.c_char_p
        found = (said() or b"").decode(errors="replace")
        if found != version:
            refuse(f"llama.cpp {found}")
        self.llama.llama_context_default_params.restype = ContextParams
        self.llama.llama_model_default_params.restype = ModelParams
        context, model = self.llama.llama_context_default_params(), self.llama.llama_model_default_params()
        seen = (
            context.n_ctx,
            context.n_batch,
            context.n_ubatch,
            context.n_seq_max,
            context.type_k,
            context.type_v,
            context.offload_kqv,
            context.op_offload,
            context.n_samplers,
            model.use_extra_bufts,
            model.no_alloc,
        )
        if seen != (512, 2048, 512, 1, 1, 1, True, True, 0, True, False):
            refuse(f"another llama.cpp: its structs' defaults read as {seen}")

    def _hear(self, level: int, text: bytes, _: Any) -> None:
        self.lines.append(text.decode(errors="replace"))

    def take(self) -> str:
        """What was logged since the last time."""
        text, self.lines[:] = "".join(self.lines), []
        return text


def refuse(what: str) -> None:
    """Say which library was found and end."""
    say({"refused": what})
    sys.exit(3)


def say(answer: dict[str, Any]) -> None:
    """One answer, one line."""
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


def buffer_types(library: Library) -> dict[str, int]:
    """Buffer types by name, as ``--override-tensor`` calls them."""
    found: dict[str, int] = {}
    ggml, base = library.ggml, library.base
    ggml.ggml_backend_dev_get.restype, ggml.ggml_backend_dev_get.argtypes = P, [Z]
    ggml.ggml_backend_dev_count.restype = Z
    base.ggml_backend_dev_buffer_type.restype, base.ggml_backend_dev_buffer_type.argtypes = P, [P]
    base.ggml_backend_buft_name.restype, base.ggml_backend_buft_name.argtypes = c.c_char_p, [P]
    for number in range(ggml.ggml_backend_dev_count()):
        kind = base.ggml_backend_dev_buffer_type(ggml.ggml_backend_dev_get(number))
        if kind:
            found[base.ggml_backend_buft_name(kind).decode()] = kind
    return found


def set_fields(params: c.Structure, values: dict[str, Any]) -> None:
    """Set a struct's fields by name; an unknown one is a fault of ours."""
    names = {field[0] for field in params._fields_}
    for name, value in values.items():
        if name not in names:
            raise KeyError(name)
        setattr(params, name, value)


def graph(library: Library, context: int, tokens: int, seqs: int, outputs: int) -> list[dict[str, Any]]:
    """The nodes of a graph as llama_graph_reserve builds it: for finding why a figure is what it is."""
    reserve = library.llama._Z19llama_graph_reserveP13llama_contextjjj
    reserve.restype, reserve.argtypes = P, [P, U32, U32, U32]
    base = library.base
    base.ggml_graph_node.restype, base.ggml_graph_node.argtypes = c.POINTER(Tensor), [P, c.c_int]
    base.ggml_graph_n_nodes.restype, base.ggml_graph_n_nodes.argtypes = c.c_int, [P]
    base.ggml_op_name.restype, base.ggml_op_name.argtypes = c.c_char_p, [c.c_int]
    built = reserve(context, tokens, seqs, outputs)
    numbers: dict[int, int] = {}
    found: list[dict[str, Any]] = []

    def row(tensor: Any) -> int:
        address = c.addressof(tensor.contents)
        if address in numbers:
            return numbers[address]
        t = tensor.contents
        view = row(t.view_src) if t.view_src else -1
        sources = [row(source) for source in t.src if source]
        numbers[address] = len(found)
        found.append(
            {
                "op": base.ggml_op_name(t.op).decode(), "name": t.name.decode(errors="replace"), "type": t.type,
                "ne": list(t.ne), "nb": list(t.nb), "flags": t.flags, "src": sources, "view": view,
                "offset": t.view_offs, "weight": bool(t.buffer or t.data) and t.op == 0, "node": False,
            }
        )  # fmt: skip
        return numbers[address]

    order = []
    for index in range(base.ggml_graph_n_nodes(built)):
        number = row(base.ggml_graph_node(built, index))
        found[number]["node"] = True
        order.append(number)
    return [{"order": order, "tensors": found}]


def resident() -> int:
    """Resident bytes of this process; 0 where /proc does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def main() -> None:
    """Answer the job on stdin."""
    job = json.load(sys.stdin)
    library = Library(job["library"], job["version"])
    model = library.llama.llama_model_default_params()
    asked = dict(job["model"])
    path, overrides = asked.pop("file"), asked.pop("overrides", [])
    if "quantize" in job:
        for number, values in enumerate(job["quantize"]):
            params = library.llama.llama_model_quantize_default_params()
            set_fields(params, values)
            result = library.llama.llama_model_quantize(path.encode(), b"/dev/null", c.byref(params))
            say({"number": number, "result": result, "log": library.take()})
        return
    set_fields(model, {"no_alloc": True, "use_extra_bufts": False, "load_mode": 0, "n_gpu_layers": 0, **asked})
    if overrides:
        types = buffer_types(library)
        rows = (Override * (len(overrides) + 1))()
        for number, (pattern, kind) in enumerate(overrides):
            rows[number] = Override(pattern.encode(), types[kind])
        model.tensor_buft_overrides = c.cast(rows, P)
    before = resident()
    loaded = library.llama.llama_model_load_from_file(path.encode(), model)
    say({"loaded": bool(loaded), "log": library.take(), "rss": before})
    if not loaded:
        return
    for number, question in enumerate(job["questions"]):
        params = library.llama.llama_context_default_params()
        values = dict(question)
        wanted = values.pop("graph", None)
        set_fields(params, values)
        context = library.llama.llama_init_from_model(loaded, params)
        answer = {"number": number, "made": bool(context), "log": library.take(), "rss": resident()}
        if context and wanted:
            answer["graph"] = graph(library, context, *wanted)
        say(answer)
        if context:
            library.llama.llama_free(context)
            library.take()


if __name__ == "__main__":
    main()
