"""Write docs/cli.md from the parsers themselves: `python tools/cli_docs.py`.

What the parsers do not know, the keys of each command's JSON, stands here; a test holds
both this file's table and the page against what the commands really print.
"""

# ruff: noqa: E501  (a table, one row a line)
from __future__ import annotations

from pathlib import Path

from membudget.cli.commands.registry import COMMANDS, available, parser_of

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """\
# The command line

Made by `tools/cli_docs.py` from the parsers; change it there.

```
membudget plan Qwen/Qwen3-8B --machine dgx-spark --ctx 32k --users 8
```

**Exit codes**, the same for every command:

| code | |
|---:|---|
| 0 | yes: it fits, it agrees, it is clear, it was done |
| 1 | no: it does not fit, it differs, a trap was found |
| 2 | wrong input: an option, a file, a model or a machine; the message says where and what is allowed |
| 3 | not available here: offline, or a package, a driver or vLLM is missing |
| 70 | a bug in membudget; `MEMBUDGET_TRACEBACK=1` shows where |
| 74 | the answer could not be written (a full disk, a closed stdout) |
| 130 | Ctrl-C |

A reader that goes away (`| head`) changes nothing. What yes and no are stands at each command.

**JSON.** Every command takes `--json`: one document on stdout, bytes as integers, nothing else there. An error is
a document too: `{"error": {"type": ..., "message": ..., "exit_code": ...}}`. Without `--json` an error is one
message on stderr.

**Numbers.** `--ctx` takes 32768, 32Ki or 32k (each 32,768); users are counts (8, 8_192, 8Ki); sizes carry their
unit (60GiB or 64.4GB, never 60G). Text shows GiB and GB side by side.

**Models** are looked up in this order: a path; the configs that ship with membudget (`membudget models`); the
Hugging Face cache; the hub, unless `--offline` or `HF_HUB_OFFLINE=1`. Where weight files lie at the path, `plan`
takes the weights from their headers and `count` compares them with the config.

**Colours** are used on a terminal only; `NO_COLOR` and `TERM=dumb` turn them off, `FORCE_COLOR=1` on. `COLUMNS` sets
the width. Where the console cannot show block characters (`cp1252`, `ascii`) bars are made of `#` and `|`.

**Completion** for bash, zsh and fish: [`membudget completion`](#completion); editors: [editor.md](editor.md).
"""

#: The keys of each command's document.
KEYS: dict[str, dict[str, str]] = {
    "plan": {
        "model, model_type, source": "which model, and where its config was found",
        "params, unknown, unproven": "parameters; parts not counted, in words; whether --as named the recipe",
        "assumed": "sizes that config.json leaves to its class, with the class's values",
        "format, kv_cache_dtype, ctx, users, engine": "what was planned",
        "machine, convention, capacity": "the machine's bytes, `reported` by its driver or `nominal`",
        "weights, kv_cache, activations, overhead": "the four buckets",
        "total, headroom, fits": "their sum, what is left (negative: missing), the verdict",
        "limit": "bytes that the engine may claim by gpu_memory_utilization; null without it",
        "max_users, max_ctx": "the most users at once at this context; a context at which these users run at once",
        "headroom_low, max_users_low": "the same where all that is bounded is at its worst; null where nothing is",
        "model_max_ctx": "the model's max_position_embeddings; null where it says none",
        "kv_per_token, kv_per_token_at_ctx, kv_per_request": "of one sequence: its first token, one more, all; of "
        "llama_cpp one cell, one more, a slot",
        "limiting_bucket": "what is short first: a bucket, gpu_memory_utilization, or `start`; null where it fits",
        "suggestions": "what would make it fit (`text`, `frees`, the new values)",
        "broken_by, changes": "the names that `limiting_bucket` and `suggestions` had before; they go with 0.3",
        "starts, refusals": "whether the engine starts; each reason why not: `code`, `text`, `would_start`",
        "concurrency": "what vLLM prints: a worst case reserved at the start, of a request of `ctx` tokens; null "
        "for other engines",
        "command": "what to type to get this; empty where nothing is known",
        "pool": "of vLLM: the keys of `pool`, `parts` of the start, `users`, `binds` (what keeps one more out); else null",
        "engine_notes": "what the engine says beside: `code`, `text`",
        "verdict": "the same in one sentence",
        "decode_upper_bound": "`bytes_read`, `bandwidth`, `step_seconds`, `tokens_per_second_per_user`; null where the "
        "bandwidth is unknown",
        "lines": "every part: `bucket`, `part`, `bytes`, `why` (the formula with its numbers); `low`, `high`, `source` "
        "where there is a range",
        "notes": "defaults and assumptions, in words",
        "plans": "with several machines: `model`, `fits` and one such object for each",
    },
    "count": {
        "model, model_type, source, unknown, unproven, assumed": "as in `plan`",
        "notes": "custom code, and keys of the config that are not read, in words",
        "params, active, checkpoint": "parameters; those one token reads; with what published files store beside them",
        "by_role, by_part": "`params` by bucket, and by finer role (`mlp.experts`)",
        "layers": "alike neighbours together: `prefix`, `first`, `last`, `params`, `active`, `by_part`, `cache`, "
        "`cache_elements_per_token`; elements of one layer",
        "tensors": "with --tensors: `name`, `shape`, `role`, `copies`, `active`, `part`",
        "stored": "where files lie: `kind`, `files`, `tensors`, `bytes`, `file_bytes`, `total_size`, "
        "`bits_per_weight`, `by_dtype`, `differences`",
    },
    "check": {
        "ok, passed, failed, files, unreadable_files": "the summary",
        "budgets": "one object each: `id`, `file`, `line`, `ok`, `total`, `capacity`, `headroom`, `fits`, `verdict`, "
        "`error`, `broken` (`field`, `predicted`, `expected`, `why`, `line`), `notes` (of the model: custom code, keys "
        "that are not read)",
        "problems": "of files that cannot be read: `file`, `line`, `message`",
    },
    "doctor": {
        "machine, software, memory": "readings: each a value (sizes in bytes), or `{unknown: reason}`",
        "tiers": "`name`, `runs`, `why` it does not, `fix` (the command that opens it), `proves`, `command`",
        "traps": "`name`, `state` (danger, note, clear, unknown), `text`, `fix`",
        "ignored, endangered": "names given with --ignore; whether a trap that is not ignored endangers a run",
        "first": "what matters most, in one sentence",
    },
    "init": {"file, fits, verdict, notes": "what was written, and the first verdict"},
    "fleet": {
        "model, format, kv_cache_dtype, ctx, users": "what was sized",
        "weights, kv_cache, prefill, cuda_and_nccl": "the parts; `reserve` is the last two, `total` all",
        "reserve, total": "see above",
        "kv_cache_mha_bf16": "the cache with a KV head for every attention head in bf16; null where unknown",
        "lower_bound, lower_bound_text": "always true, and what that means",
        "counts": "`machine`, `marketed` (decimal bytes), `devices`, `reserve` (bytes of it left to the system)",
        "node, max_users, refusal, verdict": "the node it is held against; `max_users` by bytes alone",
        "within_bound, fits": "whether the node has the bytes; whether of a model a layout of it fits too (exit code 0)",
        "layouts": "of a model every layout of the node: `tensor_parallel`, `pipeline_parallel`, `devices`, `refused` (why, "
        "or null), `headroom`, `max_users`, `fits`, as `plan` has them; null with --params",
        "with_a_layout": "of a model for each `machine`: `by_bytes`, and the `layout` on the fewest of up to `tried` "
        "devices that fits, or null; `unknown`: how it is split is not known here",
        "notes": "what was taken for granted of the node",
        "tensor_parallel": "`size`, `divides`, `why`, `kv_copies`, `weights` and `kv_cache` of one device",
        "parts": "`name`, `bytes`, `why`",
    },
    "machines": {"machines": "every field of each machine; sizes in bytes, bandwidth in bytes a second"},
    "formats": {
        "formats": "`name`, `bits_per_layer_weight`, `dense`, `source`, `suffixes`; of a model `format`, `weights`, `common`, and "
        "with a machine `engine`, `total`, `headroom`, `fits`, `max_users`, `max_ctx` as in `plan`",
        "kv_cache_dtypes": "names; without a model",
        "model, params, declared, machine, ctx, users, notes": "with a model: what was asked, and the config's own format",
        "refused": "with a model: formats that do not apply to it, each with why",
    },
    "models": {"models": "hub ids", "refused": "shipped configs that membudget refuses to predict, each with why"},
    "schema": {"(all)": "the JSON Schema itself"},
    "completion": {"shell, script": "the script to evaluate"},
    "fetch": {"fetched": "`model`, `files`, `source`, `params`, `checkpoint`, `total_size`, `note`"},
    "pool": {
        "model, source": "as in `plan`",
        "version, platform, available, kv_cache_dtype": "the question",
        "block_size, page_size, bytes_per_block, num_blocks, used, stages": "the blocks",
        "groups": "`kind`, `layers`, `block_size`, `page_size`, `window`, `blocks_per_request`, `mixed`, `fixed`, "
        "`mode`",
        "tokens, tokens_legacy, tokens_concurrent": "KV cache size as this version prints it; before and from 0.20.1",
        "max_model_len, request_len, max_num_batched_tokens, in_flight_tokens": "as vLLM will use them",
        "blocks_per_request, need, longest, max_concurrency": "of one request; the longest that fits; how many fit",
        "starts, error, refusal": "the verdict, the refusal in vLLM's words, and its code",
        "why": "the rules that were applied, with their vLLM files",
        "refusals": "every reason why it does not start: `code`, `text`, `would_start`",
        "users, binds": "with --machine: requests at once, and what keeps one more out",
        "identity": "with --machine: where the pool's bytes come from; null otherwise",
        "notes": "with --machine: a share that takes what the operating system is left, in words",
    },
    "upgrade": {
        "before, after, moved, worse": "the versions; how many budgets move, and serve less",
        "budgets": "`id`, `before`, `after` (`starts`, `refusal`, `available`, `num_blocks`, `tokens`, `users`, "
        "`concurrency`, `why`, `parts`), `moved`, `reasons`, `worse`",
        "unknown": "budgets whose answer is not known under one of them, and why",
    },
    "oracle": {
        "model, equal": "whether the arithmetic agrees in every case",
        "version, params, layout, seconds": "of the vLLM that was asked",
        "rows": "one object a case, with `differences`",
        "format": "with --engine llama_cpp; its rows have its settings, `llama.cpp` and `arithmetic` by part, `refused`",
    },
    "trace": {
        "model, model_class, tokens, batch, attention, logits, dtype": "what was traced",
        "allocator, steps, ceiling, dynamic, static": "with --allocator: `samples`, `worst`, `lost`, `out_of_memory_at`",
        "peak": "the most that was alive at once beside the weights, the KV cache included",
        "cache, activations": "what the cache object holds of it; the rest",
        "weights, buffers": "not in the peak",
        "left": "what was alive when the forward was done",
        "live": "what was alive at the peak: `module`, `op`, `shape`, `dtype`, `bytes`, alike ones together",
        "closed_form, closed_form_why, closed_form_off": "what the arithmetic says of `activations`, and by how much it is off",
        "versions, seconds": "of torch and transformers; how long it took",
    },
    "probe": {
        "label, unified, usable, reclaimable": "without a budget: each reading a number or `{unknown: reason}`",
        "mem_total, mem_available, mem_free, cached, swap_total, swap_free, rss, cgroup_current": "as Linux says",
        "memory_pressure": "PSI some avg10, in thousandths of a percent",
        "cuda_total, cuda_free, device_process, gpu_temperature": "as the driver says",
        "machine, versions": "what this machine is, with its driver and CUDA; packages that move bytes",
        "torch_allocated, torch_reserved, torch_peak_allocated, torch_peak_reserved": "torch on CUDA",
        "mps_allocated, mps_driver, mps_recommended": "torch on a Mac",
        "budgets": "with budgets: `budget`, `status`, `why`, `lines`, `stages` (the ledgers by stage), `seconds`, `lowest_available`",
        "plans": "with --dry-run: `budget`, `refused` (why it would not start), `text`",
        "not_measured": "budgets that cannot be measured, and why",
    },
    "history": {
        "folder, runs": "where the records lie; `id`, `time`, `source`, `machine`, `versions`, `flags`, `commit`, "
        "`green`, `reference`, `skipped` of each run",
        "lines": "`budget`, `line`, `side` (predicted, measured), `values`: one a run, null where it has none",
        "contradictions": "budgets whose verdict is another one than their own numbers give",
        "problems": "lines that are no record, in words",
    },
    "diff": {
        "before, after": "ids of the two runs",
        "differences": "of machine, flags and versions: `kind`, `name`, `before`, `after`",
        "moved, unexplained": "whether a line moved beyond its tolerance; how many of those no known change explains",
        "moves": "`budget`, `line`, `side`, `before`, `after`, `unit`, `off`, `share`, `beyond`, `explained`, `since` "
        "(`before`, `after`, `versions`), `changes`",
        "same": "lines that are as they were",
        "changed": "budgets that ask something else now, not compared",
        "each": "with --each: one such object for every machine and source",
        "lost, only_before, only_after": "lines no longer measured; budgets of one run only",
        "problems": "lines that are no record, in words",
    },
    "bisect": {
        "budget, line, package": "what was asked",
        "good, bad": "the versions at the ends and their values",
        "found, before, after": "whether it moved; the last version as before, the first that moved",
        "values": "by version: `value` or `error`",
        "skipped": "versions in between that could not be asked",
        "others": "further pairs of versions that were asked one after the other and differ",
        "changes": "known changes that fit",
    },
    "explore": {
        "file, bytes": "the page that was written",
        "models, machines": "names of what is on it",
    },
    "report": {
        "file, bytes": "the page that was written",
        "budgets": "`passed`, `failed` or `recorded`, by the budget's id",
        "failed": "how many failed",
        "problems": "what could not be read, or was not asked",
    },
    "log": {
        "(list)": "one object an engine: `version`, `model`, `figures` by name, `verdict`, `checks`, `differences`, "
        "`arithmetic`, `options`; see vllm-logs.md",
    },
}


def page() -> str:
    """The page's text."""
    out = [HEAD]
    here = available()
    out += ["| command | |", "|---|---|"]
    out += [f"| [`{name}`](#{name}) | {text} |" for name, _, text in COMMANDS if name in here]
    for name in here:
        parser = parser_of(name)
        out += ["", f"## {name}", "", *(parser.description or "").splitlines(), ""]
        out += ["```", " ".join((parser.usage or "").split()), "```", "", "| option | |", "|---|---|"]
        for action in parser._actions:
            value = f" {action.metavar or '{' + ','.join(action.choices) + '}'}" if action.nargs != 0 else ""
            shown = f"{', '.join(action.option_strings)}{value}" if action.option_strings else f"{action.metavar}"
            out.append(f"| `{shown}` | {(action.help or '').replace('|', chr(92) + '|')} |")
        if name in KEYS:
            out += ["", "| JSON | |", "|---|---|"]
            out += [f"| {', '.join(f'`{key}`' for key in keys.split(', '))} | {t} |" for keys, t in KEYS[name].items()]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
