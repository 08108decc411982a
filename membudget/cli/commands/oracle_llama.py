"""`membudget oracle --engine llama_cpp`: a real libllama loads the model's header and says what it would allocate."""

from __future__ import annotations

from dataclasses import replace

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, NotHere, context, count, find_model
from membudget.data.defaults import MAX_CTX
from membudget.engines.llama_cpp.oracle import LibraryMissing, OracleError, find_library
from membudget.engines.llama_cpp.oracle.compare import Row, compare
from membudget.engines.llama_cpp.oracle.library import VERSION
from membudget.engines.llama_cpp.settings import CACHE_TYPES, FlashAttention, Settings
from membudget.formats import get
from membudget.formats.gguf import Gguf

DEFAULT_CTX = "8192"


def options(parser: Declares) -> None:
    """The arguments that llama.cpp's settings are, by its own names."""
    add = parser.add_argument
    add("--llama", metavar="PATH", help="llama.cpp: its library's folder; default: npm's")
    add("--format", metavar="NAME", default="q4_k_m", help="llama.cpp: of the file; default: q4_k_m")
    add("-c", "--ctx-size", metavar="N", action="append", help=f"llama.cpp: may be repeated; default: {DEFAULT_CTX}")
    add("-np", "--parallel", metavar="N", default="1", help="llama.cpp: slots; default: 1")
    add("-ub", "--ubatch-size", metavar="N", default="512", help="llama.cpp: default: 512")
    flash, cache = tuple(mode.value for mode in FlashAttention), tuple(CACHE_TYPES)
    add("-fa", "--flash-attn", metavar="MODE", choices=flash, default="auto", help="llama.cpp: on, off, auto (default)")
    add("-ctk", "--cache-type-k", metavar="TYPE", choices=cache, default="f16", help="llama.cpp: keys; default: f16")
    add("-ctv", "--cache-type-v", metavar="TYPE", choices=cache, default="f16", help="llama.cpp: values; default: f16")
    add("--swa-full", action="store_true", help="llama.cpp: windows keep all tokens")


def run(args: Arguments) -> Result:
    """Ask, then compare."""
    lengths = [context("--ctx-size", text, MAX_CTX) for text in args.ctx_size or [DEFAULT_CTX]]
    ubatch = count("--ubatch-size", args.ubatch_size, 65536)
    plain = Settings(
        0,
        count("--parallel", args.parallel, 256),
        batch_size=max(2048, ubatch),
        ubatch_size=ubatch,
        flash_attn=FlashAttention(args.flash_attn),
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_v,
        swa_full=args.swa_full,
    )
    layout = get(args.format)
    if not isinstance(layout, Gguf):
        raise InputError(f"--format: {args.format} is a format of another kind of file")
    model, _ = find_model(args)
    try:
        library = find_library(args.llama)
        rows = compare(model, layout, [replace(plain, ctx_size=length) for length in lengths], library)
    except (LibraryMissing, OracleError) as error:
        raise NotHere(str(error)) from None
    differ = any(row.differs for row in rows)
    document = {
        "model": model.name, "format": layout.name, "version": VERSION, "equal": not differ,
        "rows": [row.as_json() for row in rows],
    }  # fmt: skip
    return Result(1 if differ else 0, document, lambda: _text(VERSION, rows))


def _text(version: str, rows: list[Row]) -> str:
    lines = [f"llama.cpp {version}, on the CPU, in MiB:"]
    for row in rows:
        lines.append("  " + row.line())
        lines += [f"  differs: {text}" for text in row.differs]
    return "\n".join(lines)
