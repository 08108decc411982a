"""Ask the installed vLLM how it would carve its pool, without a GPU and without weights, and compare with ours.

With --engine llama_cpp a real libllama is asked for its caches and buffers (docs/llama-cpp.md).
Exit code 0: the arithmetic agrees in every case; 1: it differs; 3: no engine to ask (--vllm, MEMBUDGET_VLLM; --llama).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from membudget.cli.commands import Result, oracle_llama
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, NotHere, context, count, find_model, model_argument, size
from membudget.data.defaults import MAX_CTX
from membudget.engines.vllm.admission import Users, users
from membudget.engines.vllm.oracle.asking import ENV, OracleAnswer, OracleError, OracleRow, ask, find_python
from membudget.engines.vllm.pool.plan import Pool, PoolError, PoolRequest, plan_pool
from membudget.engines.vllm.versions import rules
from membudget.errors import MembudgetError
from membudget.model import Model
from membudget.text.sanitize import shown

DEFAULT_LENGTH, DEFAULT_BATCHED, DEFAULT_AVAILABLE, DEFAULT_SEQS = "8192", "8192", "60 GiB", "256"


def options(parser: Declares) -> None:
    """The arguments of `membudget oracle`."""
    add = parser.add_argument
    model_argument(parser)
    add("--engine", choices=("vllm", "llama_cpp"), default="vllm", help="default: vllm")
    add("--vllm", metavar="PATH", help=f"its python or environment; default: {ENV}")
    add("--available-kv", metavar="SIZE", default=DEFAULT_AVAILABLE, help=f"for the pool; default: {DEFAULT_AVAILABLE}")
    add("--max-model-len", metavar="N", action="append", help=f"may be repeated; default: {DEFAULT_LENGTH}")
    add("--max-num-batched-tokens", metavar="N", action="append", help=f"may be repeated; default: {DEFAULT_BATCHED}")
    add("--kv-cache-dtype", metavar="DTYPE", action="append", help="may be repeated; default: auto")
    add("--tp", metavar="N", default="1", help="tensor-parallel size; default: 1")
    add("--pp", metavar="N", default="1", help="pipeline-parallel size; default: 1")
    add("--platform", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--users", action="store_true", help="run its scheduler: requests that decode at once")
    add("--max-num-seqs", metavar="N", default=DEFAULT_SEQS, help=f"with --users; default: {DEFAULT_SEQS}")
    add("--timeout", metavar="SECONDS", default="900", help="default: 900")
    oracle_llama.options(parser)


def run(args: Arguments) -> Result:
    """Ask, then compare."""
    if args.engine == "llama_cpp":
        return oracle_llama.run(args)
    lengths = [context("--max-model-len", text, MAX_CTX) for text in args.max_model_len or [DEFAULT_LENGTH]]
    steps = [context("--max-num-batched-tokens", t, MAX_CTX) for t in args.max_num_batched_tokens or [DEFAULT_BATCHED]]
    tp, pp = count("--tp", args.tp, 4096), count("--pp", args.pp, 4096)
    available = size("--available-kv", args.available_kv)
    timeout, seqs = count("--timeout", args.timeout, 10**6), count("--max-num-seqs", args.max_num_seqs, 10**5)
    model, found = find_model(args)
    if found.config is None:
        raise InputError(f"{shown(args.model)}: vLLM is asked with a config.json, and there is none")
    python = find_python(args.vllm)
    if python is None:
        where = f"{shown(args.vllm)} is not one" if args.vllm else f"neither --vllm nor {ENV} names one"
        raise NotHere(f"no vLLM to ask: {where}; name the python of an environment that has vLLM")
    try:
        answer = ask(
            python,
            found.config.raw,
            [{"max_model_len": n, "max_num_batched_tokens": step} for n in lengths for step in steps],
            available=available,
            kv_cache_dtypes=args.kv_cache_dtype or ["auto"],
            platform=args.platform,
            tp=tp,
            pp=pp,
            users=[{"max_num_seqs": seqs}] if args.users else (),
            timeout=timeout,
        )
    except OracleError as error:
        raise NotHere(str(error)) from None
    differ = [_differences(model, row, answer, args.platform, available, tp, pp) for row in answer.rows]
    document = {"model": model.name, "equal": not any(differ), **answer.as_json()}
    for row, lines in zip(document["rows"], differ, strict=True):
        row["differences"] = lines
    return Result(1 if any(differ) else 0, document, lambda: _text(answer, differ))


def _differences(
    model: Model, row: OracleRow, answer: OracleAnswer, platform: str, available: int, tp: int, pp: int
) -> list[str]:
    try:
        pool = plan_pool(
            PoolRequest(
                model,
                available,
                max_model_len=row.max_model_len,
                max_num_batched_tokens=row.max_num_batched_tokens,
                kv_cache_dtype=row.kv_cache_dtype,
                tp=tp,
                pp=pp,
                version=answer.version,
                platform=platform,
            )
        )
    except PoolError as error:
        return [f"the arithmetic has no answer: {error}"]
    out = row.differences(pool)
    for asked in row.users:
        try:
            ours = _ours(pool, asked, answer, pp)
        except MembudgetError as error:
            out.append(f"users: the arithmetic has no answer: {error}")
            continue
        if ours.users != asked["users"]:
            out.append(f"users: vLLM's {asked['scheduler']} {asked['users']:,}, arithmetic {ours.users:,}")
    return out


def _ours(pool: Pool, asked: Mapping[str, Any], answer: OracleAnswer, pp: int) -> Users:
    """Our answer to what the scheduler was asked."""
    return users(
        pool,
        asked["ctx"],
        rules=rules(answer.version),
        max_num_seqs=asked["max_num_seqs"],
        max_num_batched_tokens=asked["max_num_batched_tokens"],
        async_scheduling=asked["async_scheduling"],
        pp=pp,
    )


def _text(answer: OracleAnswer, differ: list[list[str]]) -> str:
    lines = answer.lines()
    for row, found in zip(answer.rows, differ, strict=True):
        case = f"{row.kv_cache_dtype}, {row.max_model_len:,} tokens, {row.max_num_batched_tokens or 0:,} batched"
        lines += [f"differs at {case}: {text}" for text in found]
    if not any(differ):
        lines += ["", f"the arithmetic says the same in all {len(differ)} cases"]
    return "\n".join(lines)
