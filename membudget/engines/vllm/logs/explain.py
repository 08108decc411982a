"""A vLLM log in one screen: did it start, where every byte went, does it equal the arithmetic, what would help.

`membudget log FILE` calls `explain_file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from membudget.engines.vllm.logs import verdict as of
from membudget.engines.vllm.logs.against import Expected, against
from membudget.engines.vllm.logs.compare import Compared, Option, compare, options
from membudget.engines.vllm.logs.log import parse_file
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.remedies import remedies
from membudget.engines.vllm.logs.verdict import Check
from membudget.model import Model
from membudget.units import MIB, gib

_BUDGET = (
    ("total_memory", "device", ""),
    ("free_memory", "free at start", ""),
    ("requested_memory", "requested", ""),
    ("consumed", "weights and non-torch", "-"),
    ("weights", "weights", "-"),
    ("peak_activation", "activations, peak", "-"),
    ("peak_with_graphs", "activations and graphs, peak", "-"),
    ("non_torch", "non-torch", "-"),
    ("cudagraph_estimate", "CUDA graphs, estimate", "-"),
    ("available_kv", "for the KV pool", "="),
    ("reserved_kv", "for the KV pool, set", "="),
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


class Explained(NamedTuple):
    """What `membudget log` says.

    code: 0 all started and agree; 1 an engine did not start, or its log ends before it did, or
        a figure, a setting or the model differs; 2 no vLLM in it.
    document: one object an engine.  text: one screen an engine.
    """

    code: int
    document: list[dict[str, Any]]
    text: str


def explain_file(
    path: str,
    *,
    model: Model | None = None,
    known: Mapping[str, Any] | None = None,
    total: int | None = None,
    weights: int | None = None,
    expected: Expected | None = None,
) -> Explained:
    """Read a log (``-`` for the standard input) and say what it means.

    model: of a budget; else the model that the log names is looked up, offline.
    known: fields of `PoolRequest` that a budget knows and a log may not print.
    total: bytes of the device, where the log does not print them.
    weights: bytes that a budget predicts for one rank.
    expected: all that a budget says of the start: settings, bytes for the pool; a log of a model that is known to be
    another one is then not compared any further.
    Raises `OSError` for a file that cannot be read.
    """
    engines = parse_file(path)
    if not engines:
        return Explained(2, [], NOTHING.format(where="the standard input" if path == "-" else path))
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    bad = False
    for index, log in enumerate(engines):
        found, note = (model, "") if model is not None else find_model(log)
        other = "" if model is None else another_model(log, model)
        compared = Compared(None, (_not_the_model(log, other),), "") if other else compare(log, found, known)
        if model is not None and not other:
            if expected is not None:
                compared = compared._replace(checks=(*compared.checks, *against(log, expected)))
            note = _unknown_model(log, model, any(check.holds is False for check in compared.checks))
        if not other and weights is not None and (check := _weights(log, weights)) is not None:
            compared = compared._replace(checks=(*compared.checks, check))
        if note and not compared.note.startswith(note):
            compared = compared._replace(note=note if found is None else f"{note}; {compared.note}".rstrip("; "))
        documents.append(as_json(log, compared, total, found))
        head = [f"engine {index + 1} of {len(engines)}"] if len(engines) > 1 else []
        texts.append("\n".join(head + explain(log, compared, total, found)))
        bad = bad or documents[-1]["verdict"]["status"] != "started" or bool(documents[-1]["differences"])
    return Explained(1 if bad else 0, documents, "\n\n".join(texts))


def _weights(log: EngineLog, predicted: int) -> Check | None:
    """The loaded model against a prediction: never under, and at most `WEIGHTS_OVER` more (allocator rounding)."""
    printed = log.get("weights")
    if printed is None:
        return None
    off = printed.number - predicted
    holds = -printed.half <= off <= WEIGHTS_OVER + printed.half
    text = f"weights: predicted {gib(predicted)}; printed {printed.printed} ({off / MIB:+,.0f} MiB)"
    return Check("weights_predicted", holds, text, 0 if holds else printed.line, off)


#: The budget file's default for weights: within +64 MiB, never under.
WEIGHTS_OVER = 64 * MIB

NOTHING = (
    "{where}: no line of a vLLM start-up in it (0.6 to 0.33 are known).\n"
    "Give the log from its beginning: `docker logs NAME 2>&1`, `vllm serve ... 2>&1 | membudget log -`."
)


def another_model(log: EngineLog, model: Model) -> str:
    """One sentence where the log names a model that is known here and takes other bytes than `model`; else ""."""
    if not log.model or log.model == model.name:
        return ""
    named, _ = find_model(log)
    if named is None or (named.count.params, named.caches) == (model.count.params, model.caches):
        return ""
    return (
        f"the log is of {log.model}, another model than the budget's {model.name}: nothing else is compared; "
        "give the budget of the log's model"
    )


def _not_the_model(log: EngineLog, text: str) -> Check:
    named = [log.settings[name].line for name in ("model", "model_tag") if name in log.settings]
    figure = log.get("model")
    return Check("model", False, text, named[0] if named else figure.line if figure else log.first_line)


def _unknown_model(log: EngineLog, model: Model, differs: bool) -> str:
    """A note where a figure is off and the log's model is one that is not known here: a folder, a served name."""
    if not differs or not log.model or log.model == model.name or find_model(log)[0] is not None:
        return ""
    return (
        f"the log names {log.model}, which may be another model than the budget's {model.name}: "
        "the arithmetic is the budget's"
    )


def find_model(log: EngineLog) -> tuple[Model | None, str]:
    """The model that the log names, without asking the hub; and why it is not known."""
    from membudget.model import ConfigError, build
    from membudget.sources.locate import locate

    name = log.model
    if name is None:
        return None, "the log does not name the model"
    try:
        located = locate(name, offline=True)
        if located.config is None:
            return None, f"{name} has no config.json here"
        return build(located.config, name), ""
    except (ConfigError, OSError) as error:
        first = str(error).split(". ")[0].splitlines()[0]
        return None, first if name in first else f"{name}: {first}"


def explain(log: EngineLog, compared: Compared, total: int | None = None, model: Model | None = None) -> list[str]:
    """One screen: who, how it ended, the budget, the pool, what does not agree, what would help."""
    out = [_who(log), _how(log), ""]
    out += _budget(log, total)
    out += _pool(log, compared)
    out += _against(compared)
    differ = [*of.differences(log), *(check for check in compared.checks if check.holds is False)]
    if differ:
        named = dict(_POOL)
        texts = [f"{named[check.name]}: {check.text}" if check.name in named else check.text for check in differ]
        out += ["does not agree"]
        out += [f"  {_at(check)}{text}" for check, text in zip(differ, texts, strict=True)] + [""]
    cures = remedies(log, compared, model)
    width = max((len(cure.text) for cure in cures), default=0)
    for sure, head in ((True, "what would start"), (False, "what may help")):
        if some := [cure for cure in cures if cure.sure is sure]:
            out += [head] + [f"  {cure.text:<{width}}  {cure.why}" for cure in some] + [""]
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
    verdict = of.verdict(log)
    where = f" (line {verdict.line})" if verdict.line else ""
    kind = f" ({verdict.kind})" if verdict.kind else ""
    later = f"\nlater: {verdict.later}" if verdict.later else ""
    return f"{verdict.status}{kind}: {verdict.text}{where}{later}"


def _budget(log: EngineLog, total: int | None) -> list[str]:
    rows: list[str] = []
    util = log.utilization
    # since 0.27 these two are inside the sums that are subtracted
    inside = ("weights", "cudagraph_estimate") if log.get("consumed") and log.get("peak_with_graphs") else ()
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
    check = of.identity(log, total)
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


def as_json(
    log: EngineLog, compared: Compared | None = None, total: int | None = None, model: Model | None = None
) -> dict[str, Any]:
    """One engine as plain values: bytes are integers, keys are documented in docs/vllm-logs.md."""
    ended = of.verdict(log)
    compared = compared or Compared(None, (), "")
    checks = [*of.checks(log), *compared.checks]
    if total is not None:
        checks = [of.identity(log, total) if check.name == "identity" else check for check in checks]
    per_token = of.bytes_per_token(log)
    return {
        "engine": log.name,
        "source": log.source,
        "data_parallel_rank": log.dp,
        "version": log.version,
        "model": log.model,
        "max_model_len": log.max_model_len,
        "first_line": log.first_line,
        "last_line": log.last_line,
        "settings": {name: _plain(setting.value) for name, setting in sorted(log.settings.items())},
        "figures": {name: _figure(log, name) for name in sorted(log.figures)},
        "bytes_per_token": None if per_token is None else {"low": per_token[0], "high": per_token[1]},
        "verdict": {**ended._asdict(), "line": ended.line or None},
        "refusals": [
            {
                "kind": refusal.kind,
                "text": of.REFUSALS[refusal.kind],
                "line": refusal.line,
                "raw": refusal.raw,
                "figures": {figure.name: figure.value for figure in refusal.figures},
            }
            for refusal in log.refusals
        ],
        "checks": [check._asdict() for check in checks],
        "differences": [check._asdict() for check in checks if check.holds is False],
        "arithmetic": None if compared.pool is None else compared.pool.as_json(),
        "options": [option._asdict() for option in options(log, compared)],
        "remedies": [cure._asdict() for cure in remedies(log, compared, model)],
        "note": compared.note,
    }


def _figure(log: EngineLog, name: str) -> dict[str, Any]:
    figure = log.get(name)
    assert figure is not None
    out: dict[str, Any] = {
        "value": figure.value,
        "unit": figure.unit or None,
        "half_width": figure.half,
        "printed": figure.printed,
        "line": figure.line,
        "raw": figure.raw,
        "rank": figure.rank or None,
    }
    every = log.all(name)
    if len(every) > 1:
        out["all"] = [{"value": f.value, "rank": f.rank or None, "line": f.line} for f in every]
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


__all__ = ["Compared", "Explained", "Option", "as_json", "compare", "explain", "explain_file", "find_model", "options"]
