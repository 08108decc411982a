"""Asks a libllama in a process of its own: a header of the model's full size, any settings, 0.1 s a question.

llama.cpp loads the file without its weights (``no_alloc``), checks every tensor's name and shape, builds the graphs
and says what it would allocate.  The library's print has two decimals of a MiB.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from membudget.checkpoint.gguf_header import tensors, write
from membudget.checkpoint.gguf_header_keys import metadata
from membudget.engines.llama_cpp.oracle.library import TAG, VERSION, Library, LibraryMissing, OracleError, find_library
from membudget.engines.llama_cpp.prints import Prints, read
from membudget.engines.llama_cpp.settings import CACHE_TYPES, Settings
from membudget.formats.gguf import Gguf
from membudget.model import Model

CHILD = os.path.join(os.path.dirname(__file__), "child.py")
TIMEOUT = 300
_ALL_LAYERS = 100_000
#: Lines that say why, the plainest first.
_TOLD = (
    "error loading model",
    "GGML_ASSERT",
    "failed to initialize",
    "error:",
    "failed",
    "not supported",
    "requires",
    "does not",
)


@dataclass(frozen=True)
class Answer:
    """What llama.cpp says to one setting: its figures, or its refusal in its own words."""

    #: the question
    settings: Settings
    #: the figures; empty where it refused
    prints: Prints
    #: its words where it refused, else empty
    error: str = ""
    #: the graph's tensors where they were asked for
    graph: tuple[dict[str, Any], ...] = ()


def ask(
    model: Model,
    layout: Gguf,
    settings: Sequence[Settings],
    library: Library | None = None,
    *,
    graph: tuple[int, int, int] | None = None,
) -> list[Answer]:
    """One answer for each setting, about a file of this model in this format.

    graph: (tokens, sequences, outputs) of a graph whose tensors are wanted.
    Raises `OracleError` where llama.cpp does not load the header, `membudget.formats.FormatError` where there is
    none to write, `LibraryMissing` where there is nothing to ask.
    """
    library = library or find_library()
    with tempfile.TemporaryDirectory(prefix="membudget-") as folder:
        path = os.path.join(folder, "model.gguf")
        entries = tensors(layout, model)
        write(path, metadata(model, {entry.name: entry.shape for entry in entries}), entries)
        return ask_file(path, settings, library, graph=graph)


def ask_file(
    path: str,
    settings: Sequence[Settings],
    library: Library | None = None,
    *,
    graph: tuple[int, int, int] | None = None,
) -> list[Answer]:
    """The same about a GGUF file that exists, sparse or whole; settings that differ in layers load it again."""
    library = library or find_library()
    answers: dict[int, Answer] = {}
    loads: dict[str, list[int]] = {}
    for number, one in enumerate(settings):
        loads.setdefault(json.dumps(_model(one, library), sort_keys=True), []).append(number)
    for load, numbers in loads.items():
        questions: list[dict[str, Any]] = [context_values(settings[number]) for number in numbers]
        if graph:
            questions = [{**question, "graph": graph} for question in questions]
        rows, told = _run(library, {"model": {"file": path, **json.loads(load)}, "questions": questions})
        if not rows or not rows[0].get("loaded"):
            raise OracleError(f"llama.cpp {TAG} does not load this model: {_words(rows, told)}", code="not_loaded")
        for number, row in zip(numbers, rows[1:], strict=False):
            error = "" if row["made"] else _words([row], told)
            shown = read(rows[0]["log"] + row["log"])
            answers[number] = Answer(settings[number], shown, error, tuple(row.get("graph", ())))
        for number in numbers:
            answers.setdefault(number, Answer(settings[number], Prints(), _words([], told)))
    return [answers[number] for number in range(len(settings))]


def file_types(
    path: str, ftypes: Sequence[int], library: Library | None = None, *, dry_run: bool = True
) -> list[dict[str, str]]:
    """The ggml type that llama-quantize gives each tensor of `path`, for each file type (``llama_ftype``).

    dry_run: nothing is quantized; else the weights are, into the null device.
    Tensors that stay as they are are named with the type they have.
    """
    library = library or find_library()
    quantize = [{"ftype": number, "dry_run": dry_run, "allow_requantize": True} for number in ftypes]
    rows, told = _run(library, {"model": {"file": path}, "questions": [], "quantize": quantize})
    if len(rows) < len(ftypes):
        raise OracleError(f"llama.cpp {TAG} quantized {len(rows)} of {len(ftypes)} file types: {_words(rows, told)}")
    return [_types(row["log"]) for row in rows]


def _types(log: str) -> dict[str, str]:
    found = {}
    for line in log.splitlines():
        named = re.search(r"\] +(\S+) +- \[.*?\], type = +(\S+),(.*)", line)
        if named:
            becomes = re.search(r"converting to (\w+)", named[3]) or re.search(r"-> *(?:.*?\()?(\w+)\)? *$", named[3])
            found[named[1]] = (becomes[1] if becomes else named[2]).upper()
    return found


def _run(library: Library, job: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    job = {"library": library.folder, "version": VERSION, **job}
    try:
        done = subprocess.run(
            [sys.executable, CHILD],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            env={**os.environ, **library.environment},
        )
    except subprocess.TimeoutExpired:
        raise OracleError(f"llama.cpp {TAG} did not answer within {TIMEOUT} s", code="timeout") from None
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if rows and "refused" in rows[0]:
        raise LibraryMissing(f"{library.folder}: {rows[0]['refused']}; asked is {VERSION}", code="another_llama_cpp")
    return rows, done.stderr


def _words(rows: Sequence[dict[str, Any]], told: str) -> str:
    """The first line in which it says why."""
    lines = [line for row in rows for line in row.get("log", "").splitlines()] + told.splitlines()
    said = next((line for told in _TOLD for line in lines if told in line), "it says nothing")
    # an assertion begins with the path of its source file, on the machine that built it
    return re.sub(r"^\S*/(\w[\w.-]*\.(?:c|cpp|cu):\d+)", r"\1", said).strip()[:300]


def _model(one: Settings, library: Library) -> dict[str, Any]:
    overrides = [list(pair) for pair in one.override_tensor]
    if one.n_cpu_moe:
        overrides += [[rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps", "CPU"] for layer in range(one.n_cpu_moe)]
    layers = _ALL_LAYERS if one.n_gpu_layers is None else one.n_gpu_layers
    found: dict[str, Any] = {"n_gpu_layers": layers if library.vulkan else 0, "load_mtp": one.mtp}
    if overrides:
        found["overrides"] = overrides
    return found


def context_values(one: Settings) -> dict[str, Any]:
    """The fields of llama_context_params that these settings are."""
    outputs = one.outputs_max
    if outputs is None:
        outputs = one.slots * (1 + one.draft_max)
    return {
        "n_ctx": one.ctx_size,
        "n_batch": one.batch_size,
        "n_ubatch": one.ubatch_size,
        "n_seq_max": one.slots,
        "n_rs_seq": one.draft_max,
        "n_outputs_max": outputs,
        "flash_attn_type": {"on": 1, "off": 0, "auto": -1}[one.flash_attn.value],
        "type_k": CACHE_TYPES[one.cache_type_k],
        "type_v": CACHE_TYPES[one.cache_type_v],
        "offload_kqv": one.kv_offload,
        "op_offload": one.op_offload,
        "swa_full": one.swa_full,
        "kv_unified": one.unified,
    }
