"""An engine's log as one screen of text."""

from __future__ import annotations

from membudget.engines.vllm.logs import checks as of
from membudget.engines.vllm.logs.checks import Check
from membudget.engines.vllm.logs.compare import Compared
from membudget.engines.vllm.logs.concurrency import options
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.suggestions import suggestions
from membudget.engines.vllm.logs.verdict import verdict as ended
from membudget.model import Model
from membudget.units import gib

_BUDGET = (
    ("total_memory", "device", ""),
    ("free_memory", "free at start", ""),
    ("requested_memory", "requested", ""),
    ("consumed", "weights and non-torch", "-"),
    ("weights", "weights", "-"),
    ("peak_with_weights", "weights + activations, peak", "-"),
    ("peak_activation", "activations, peak", "-"),
    ("peak_with_graphs", "activations and graphs, peak", "-"),
    ("non_torch", "non-torch", "-"),
    ("cudagraph_estimate", "CUDA graphs, estimate", "-"),
    ("available_kv", "available KV cache memory", "="),
    ("reserved_kv", "KV cache memory, set", "="),
    ("cudagraph", "CUDA graphs, real", ""),
)
_POOL = (
    ("kv_tokens", "tokens"),
    ("max_concurrency", "concurrency"),
    ("num_blocks", "blocks"),
    ("override_blocks", "blocks, override"),
    ("block_size", "block size"),
    ("needed_kv", "needed for one request"),
    ("estimated_max_model_len", "longest that fits"),
)


def explain(log: EngineLog, compared: Compared, model: Model | None = None) -> list[str]:
    """One screen: who, how it ended, the budget, the pool, what does not agree, what would help."""
    out = [_who(log), _how(log), ""]
    out += _budget(log)
    out += _pool(log, compared)
    out += _against(compared)
    differ = [*of.differences(log), *(check for check in compared.checks if check.holds is False)]
    if differ:
        named = dict(_POOL)
        texts = [f"{named[check.name]}: {check.text}" if check.name in named else check.text for check in differ]
        out += ["does not agree"]
        out += [f"  {_at(check)}{text}" for check, text in zip(differ, texts, strict=True)] + [""]
    found = suggestions(log, compared, model)
    width = max((len(each.text) for each in found), default=0)
    for sure, head in ((True, "what would start"), (False, "what may help")):
        if some := [each for each in found if each.sure is sure]:
            out += [head] + [f"  {each.text:<{width}}  {each.why}" for each in some] + [""]
    help_ = options(log, compared)
    if help_:
        out += ["more concurrency"] + [f"  {option.times:5.2f}x  {option.text}" for option in help_[:4]] + [""]
    if compared.note:
        out.append(f"note: {compared.note}")
    while out and not out[-1]:
        out.pop()
    return out


def _at(check: Check) -> str:
    return f"line {check.line}: " if check.line else ""


def _against(compared: Compared) -> list[str]:
    """What the budget predicts beside what was printed, and settings that it does not say."""
    mine = [check for check in compared.checks if check.name.partition(".")[0] in ("setting", "pool_bytes")]
    mine += [check for check in compared.checks if check.name == "weights_predicted"]
    shown = [f"  {_at(check)}{check.text}" for check in mine if check.holds is not False]
    return ["against the budget", *shown, ""] if shown else []


def _who(log: EngineLog) -> str:
    parts = [f"vLLM {log.version}" if log.version else "vLLM (no version in the log)", log.model or "no model named"]
    dtype, kv = log.setting("dtype"), log.setting("kv_cache_dtype")
    parts += [str(dtype)] if dtype else []
    parts += [f"KV {kv}"] if kv else []
    for name, short in (("tensor_parallel_size", "TP"), ("pipeline_parallel_size", "PP")):
        value = log.setting(name)
        parts += [f"{short} {value}"] if isinstance(value, int) and value > 1 else []
    # 0.10 to 0.13 call the only engine DP0
    several = log.setting("data_parallel_size")
    parts += [f"DP rank {log.dp}"] if log.dp or (isinstance(several, int) and several > 1) else []
    length = log.max_model_len
    parts += [f"{length:,} tokens a request"] if length else []
    return " · ".join(parts)


def _how(log: EngineLog) -> str:
    verdict = ended(log)
    where = f" (line {verdict.line})" if verdict.line else ""
    kind = f" ({verdict.kind})" if verdict.kind else ""
    later = f"\nlater: {verdict.later}" if verdict.later else ""
    return f"{verdict.status}{kind}: {verdict.text}{where}{later}"


def _budget(log: EngineLog) -> list[str]:
    rows: list[str] = []
    util = log.utilization
    # since 0.27 these two are inside the sums that are subtracted
    inside: tuple[str, ...] = (
        ("weights", "cudagraph_estimate") if log.get("consumed") and log.get("peak_with_graphs") else ()
    )
    if log.get("peak_with_weights"):  # 0.6.3 to 0.6.5
        inside = ("weights",)
    for name, text, sign in _BUDGET:
        figure = log.get(name)
        if name in inside:
            text, sign = f"  in it: {text}", ""
        if figure is None or (name == "available_kv" and log.get("reserved_kv") is not None):
            continue
        where = f"line {figure.line}" + (f", {figure.rank}" if figure.rank else "")
        rows.append(f"  {sign or ' '} {text:<28} {figure.printed:>14}   {where}")
        if name == "total_memory" and util is not None:
            rows.append(f"    {'x gpu_memory_utilization':<28} {util.printed:>10}       line {util.line}")
    if not rows:
        return []
    check = of.identity(log)
    state = {True: "closes", False: "does not close", None: "cannot be checked"}[check.holds]
    state += f", {gib(abs(int(check.off)))} off" if check.holds else f": {check.text}"
    return [f"budget: {state}", *rows, ""]


def _pool(log: EngineLog, compared: Compared) -> list[str]:
    checks = {check.name: check for check in compared.checks}
    rows = []
    for name, text in _POOL:
        figure = log.get(name)
        if figure is None:
            continue
        printed = figure.printed + ("x" if figure.unit == "x" else "")
        check = checks.get(name)
        rows.append(f"    {text:<28} {printed:>14}   line {figure.line}{_state(check)}")
    per_token = of.bytes_per_token(log)
    if per_token is not None:
        rows.append(f"    {'bytes / printed tokens':<28} {_interval(per_token):>14}")
    return ["pool", *rows, *_meaning(log, compared), ""] if rows else []


def _state(check: Check | None) -> str:
    if check is None:
        return ""
    if check.holds:
        return "   equals the arithmetic"
    return f"   {check.text}"


def _interval(pair: tuple[float, float]) -> str:
    low, high = (f"{value:,.0f}" for value in pair)
    return low if low == high else f"{low} to {high}"


def _meaning(log: EngineLog, compared: Compared) -> list[str]:
    """Where the concurrency comes from, in one line."""
    pool, times = compared.pool, log.get("max_concurrency")
    check = of.tokens(log)
    out = []
    if pool is not None and times is not None and pool.blocks_per_request:
        blocks, value = pool.num_blocks, pool.max_concurrency
        if any(check.name == "max_concurrency" and check.holds for check in compared.checks):
            # the printed multiple is sharper than the printed GiB
            value = float(times.value)
            blocks = round(value * pool.blocks_per_request)
        out.append(
            f"    {blocks:,} blocks of {pool.bytes_per_block:,} B / {pool.blocks_per_request:,} a request "
            f"= {value:.2f}x"
        )
    if check is not None and check.holds is None:
        out.append(f"    tokens are not concurrency x length here: {check.text}")
    return out
