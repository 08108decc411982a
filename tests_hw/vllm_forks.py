"""Starts a real vLLM engine a case, in one process image: vLLM is imported once, then forked per case.

    python vllm_forks.py JOB.json RESULTS.jsonl

Runs in vLLM's own Python, imports nothing of membudget.  A start takes 4 to 6 s instead
of the 40 to 80 s of a fresh interpreter.  JOB: {"folder": ..., "seconds": limit a case,
"cases": [{"name", "config", "engine": {...}, "env": {...}, "generate": bool}]}.  Every
case writes folder/NAME.log and one line of RESULTS: what the engine says about its pool,
or its error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="INFO",
)
os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would silently replace kv_cache_memory_bytes


def start(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """One engine, in this process; the figures from its own config."""
    import torch
    from vllm import LLM, SamplingParams

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()  # Linux gives the tiles to a process that asks, and vLLM 0.32 does not: SIGILL
    os.environ.update(case.get("env", {}))
    engine = LLM(
        model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, **case.get("engine", {})
    )
    config = engine.llm_engine.vllm_config
    cache = config.cache_config
    out: dict[str, Any] = {
        "num_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "tokens": getattr(cache, "kv_cache_size_tokens", None),
        "max_concurrency": getattr(cache, "kv_cache_max_concurrency", None),
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "prefix_caching": cache.enable_prefix_caching,
    }
    if case.get("generate"):
        parameters = SamplingParams(max_tokens=4, detokenize=False, ignore_eos=True)
        answers = engine.generate([{"prompt_token_ids": [1, 2, 3]}], parameters, use_tqdm=False)
        out["generated"] = len(answers[0].outputs[0].token_ids)
    return out


def run(case: dict[str, Any], folder: str, seconds: float) -> dict[str, Any]:
    """Fork, start, collect; a case that dies or hangs is a result too."""
    home = os.path.join(folder, case["name"])
    os.makedirs(home, exist_ok=True)
    with open(os.path.join(home, "config.json"), "w", encoding="utf-8") as file:
        json.dump(case["config"], file)
    began = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)
        log = os.open(os.path.join(folder, f"{case['name']}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            out = start(case, home)
        except BaseException as error:
            traceback.print_exc()
            out = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.flush()
        os.write(writer, json.dumps(out).encode())
        os._exit(0)
    os.close(writer)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    answer = b""
    while piece := os.read(reader, 65536):
        answer += piece
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.close(reader)
    result: dict[str, Any] = {"name": case["name"], "seconds": round(time.monotonic() - began, 1)}
    if answer:
        return {**result, **json.loads(answer)}
    if os.WIFSIGNALED(status):
        late = " (it took too long)" if result["seconds"] >= seconds else ""
        return {**result, "error": f"killed by signal {os.WTERMSIG(status)}{late}"}
    return {**result, "error": f"ended with {os.WEXITSTATUS(status)} and said nothing"}


def main() -> None:
    """All cases of a job, one line of results each as it ends."""
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    began = time.monotonic()
    import vllm
    from vllm import LLM  # noqa: F401  (imported once, for every case)
    from vllm.model_executor.models import registry

    # model classes are inspected in a second process that imports everything again: 20 s a class
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()
    print(f"vLLM {vllm.__version__} imported in {time.monotonic() - began:.0f} s", flush=True)
    with open(sys.argv[2], "w", encoding="utf-8") as results:
        results.write(json.dumps({"version": vllm.__version__}) + "\n")
        for case in job["cases"]:
            result = run(case, job["folder"], job["seconds"])
            results.write(json.dumps(result) + "\n")
            results.flush()
            print(f"{case['name']}: {result.get('error') or 'started'} ({result['seconds']} s)", flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
