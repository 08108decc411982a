"""The exact memory peak of one prefill of the real transformers model, without a GPU and without its memory.

The model runs on fake tensors in a guarded process. Exit code 0: traced; 3: torch or transformers is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, NotHere, context, count, find_model, model_argument, size
from membudget.data.defaults import MAX_CTX
from membudget.engines import activations
from membudget.host.available import missing
from membudget.measure.guard import Limits, Outcome
from membudget.measure.run import run_step
from membudget.model import Model
from membudget.text.terminal import Terminal, table
from membudget.units import both, short

DEFAULT_TOKENS = "8192"
#: A trace holds shapes only: this is Python, torch and its own bookkeeping.
PEAK, FLOOR = 2 * 2**30, 2**29


def options(parser: Declares) -> None:
    """The arguments of `membudget trace`."""
    add = parser.add_argument
    model_argument(parser)
    add("--tokens", metavar="N", default=DEFAULT_TOKENS, help=f"of each prompt; default: {DEFAULT_TOKENS}")
    add("--batch", metavar="N", default="1", help="prompts at once; default: 1")
    add("--attention", choices=("sdpa", "eager"), default="sdpa", help="fused, or every score in memory; default: sdpa")
    add("--logits", choices=("last", "all"), default="last", help="positions whose logits are kept; default: last")
    add("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16", help="of weights and cache; default: bf16")
    add("--round-to", metavar="BYTES", default="1", help="count storages in multiples; 512 is CUDA's; default: 1")
    add("--allocator", choices=("cuda", "cuda-expandable"), help="decode steps on torch's CUDA allocator, simulated")
    add("--steps", metavar="N", default="4000", help="single-token steps, with --allocator; default: 4000")
    add("--ceiling", metavar="SIZE", help="what the allocator may reserve, with --allocator; default: no limit")
    add("--timeout", metavar="SECONDS", default="900", help="default: 900")


def run(args: Arguments) -> Result:
    """Trace in a process of its own."""
    tokens, batch = context("--tokens", args.tokens, MAX_CTX), count("--batch", args.batch, 2**20)
    step = {
        "do": "trace",
        "tokens": tokens,
        "batch": batch,
        "attention": args.attention,
        "logits": "every" if args.logits == "all" else "last",
        "round_to": count("--round-to", args.round_to, 2**21),
    }
    limits = Limits(PEAK, FLOOR, FLOOR, float(count("--timeout", args.timeout, 10**6)))
    model, found = find_model(args)
    if found.config is None:
        raise InputError("a trace is of a config.json, and there is none")
    lacks = missing("transformers")
    if lacks:
        raise NotHere(str(lacks), code=lacks.code)
    if args.allocator:
        return _allocator(args, model.name, found.config.raw, batch, limits)
    outcome = run_step(step, found.config.raw, args.dtype, limits)
    traced = _figures(outcome)
    form = _closed_form(model, args, tokens, batch)
    over = traced["peak"] - traced["cache"]
    document = {
        "model": model.name,
        "tokens": tokens,
        "batch": batch,
        "attention": args.attention,
        "logits": args.logits,
        "dtype": args.dtype,
        **{key: traced[key] for key in ("weights", "buffers", "peak", "cache", "left", "live", "model_class")},
        "activations": over,
        "closed_form": form.bytes,
        "closed_form_why": form.why,
        "closed_form_off": form.bytes - over,
        "versions": next((stage["versions"] for stage in outcome.stages if "versions" in stage), {}),
        "seconds": round(outcome.seconds, 1),
    }
    return Result(0, document, lambda: _text(document))


def _allocator(args: Arguments, name: str, raw: Mapping[str, Any], batch: int, limits: Any) -> Result:
    """Decode steps of a growing and of a static cache, replayed on the simulated allocator."""
    steps = count("--steps", args.steps, MAX_CTX)
    ceiling = size("--ceiling", args.ceiling) if args.ceiling else None
    document: dict[str, Any] = {"model": name, "batch": batch, "steps": steps, "ceiling": ceiling, "dtype": args.dtype}
    document["allocator"] = args.allocator
    for cache in ("dynamic", "static"):
        step = {
            "do": "trace_steps", "name": "trace", "batch": batch, "steps": steps, "every": max(1, steps // 32),
            "cache": cache, "expandable": args.allocator == "cuda-expandable", "ceiling": ceiling,
            "target": {"device": "cuda"},
        }  # fmt: skip
        document[cache] = _figures(run_step(step, raw, args.dtype, limits))
    return Result(0, document, lambda: _drawn(document))


def _drawn(found: dict[str, Any]) -> str:
    blocks = "▁▂▃▄▅▆▇█" if Terminal.of().unicode else " .:-=+*#"
    lines = [f"{found['model']}, {found['dtype']}, {found['batch']:,} sequences, {found['steps']:,} single tokens", ""]
    rows: list[tuple[str, ...]] = [
        ("cache", "allocated", "reserved", "unused, most", "left after empty_cache", "out of memory")
    ]
    for cache in ("dynamic", "static"):
        figures = found[cache]
        last = figures["samples"][-1] if figures["samples"] else {"allocated": 0, "reserved": 0}
        at = f"at step {figures['out_of_memory_at']:,}" if figures.get("out_of_memory_at") else "no"
        sizes = (last["allocated"], last["reserved"], figures["worst"], figures["lost"])
        rows.append((cache, *(short(size) for size in sizes), at))
    lines += table(rows, "<>>>><")
    for cache in ("dynamic", "static"):
        unused = [sample["reserved"] - sample["allocated"] for sample in found[cache]["samples"]]
        most = max([*unused, 1])
        drawn = "".join(blocks[min(len(blocks) - 1, size * len(blocks) // most)] for size in unused)
        lines.append(f"unused by step, {cache:<8} {drawn}")
    return "\n".join([*lines, "", f"torch's CUDA caching allocator, simulated; attention: {_kernels(found)}"])


def _kernels(found: dict[str, Any]) -> str:
    names = sorted({name for cache in ("dynamic", "static") for name in found[cache].get("kernels", {})})
    return ", ".join(names) or "eager"


def _closed_form(model: Model, args: Arguments, tokens: int, batch: int) -> Any:
    return activations.prefill(
        model,
        tokens * batch,
        sequences=batch,
        attention=args.attention,
        logits="every" if args.logits == "all" else "last",
        width=4 if args.dtype == "fp32" else 2,
    )


def _figures(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = (outcome.result or {}).get("steps", {}).get("trace", {})
    if outcome.status != "done":
        raise NotHere(f"the trace was not finished: {outcome.why}. {outcome.stderr[-500:]}".strip())
    if "unknown" in found or "error" in found:
        raise NotHere(str(found.get("unknown") or found["error"]))
    return found


def _text(found: dict[str, Any]) -> str:
    prompts = f"{found['batch']:,} x {found['tokens']:,} tokens"
    logits = "the last logit" if found["logits"] == "last" else "every logit"
    rows = [
        ("peak over the weights", f"{found['peak']:,} B", both(found["peak"])),
        ("  of it KV cache", f"{found['cache']:,} B", both(found["cache"])),
        ("  of it temporaries", f"{found['activations']:,} B", both(found["activations"])),
        ("closed form", f"{found['closed_form']:,} B", _compare(found)),
        ("weights, not in it", f"{found['weights']:,} B", both(found["weights"])),
        ("buffers, not in it", f"{found['buffers']:,} B", ""),
    ]
    alive = [("alive at the peak", "", "", "")]
    for item in found["live"]:
        shape = " x ".join(map(str, item["shape"]))
        alive.append(
            (f"  {item['module'] or '(outside)'}", item["op"], f"{shape} {item['dtype']}", short(item["bytes"]))
        )
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return "\n".join(
        [
            f"{found['model']} ({found['model_class']}), {found['dtype']}, {prompts}, {found['attention']}, {logits}",
            "",
            *table(rows, "<><"),
            "",
            *table(alive, "<<<>"),
            "",
            f"on fake tensors, {found['seconds']:g} s; {versions}",
        ]
    )


def _compare(found: dict[str, Any]) -> str:
    off = found["closed_form_off"]
    if off == 0:
        return "the same to the byte"
    share = f", {off / found['activations']:+.1%}" if found["activations"] else ""
    return f"{off:+,} B{share}: {found['closed_form_why']}"
