"""How many requests of `ctx` tokens vLLM's own Scheduler decodes at once, over its own KVCacheConfig, with fake tokens.

Runs in the asked vLLM's environment, imports nothing of membudget.

The scenario: N requests with different prompts arrive together and end at `ctx` tokens each,
of which an answer of ANSWER tokens, or as many as it takes until the last one has joined.  N is
served when all N decode in one step and none was preempted before the first one ended.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
import json
from collections import deque
from typing import Any
from unittest.mock import MagicMock


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


#: Tokens of an answer, where nobody says another number: the last request joins before the first has made so many.
ANSWER = 560


def output_tokens(n: int, ctx: int, batched: int, aligned: int, answer: int) -> int:
    """Tokens that each request makes.

    aligned: the block that prefill chunks of a hybrid end at, or 0.
    """
    chunk = batched // aligned * aligned if aligned and batched >= aligned else batched
    steps = n * (cdiv(ctx, chunk) + (2 if aligned else 0))
    if not aligned and batched > n:
        steps = min(steps, cdiv(n * ctx, batched - n))
    return min(max(min(answer, ctx // 2), steps + 64), ctx - 1)


def only(kind: Any, values: dict[str, Any]) -> Any:
    """An object of vLLM's from those values that this version's constructor takes."""
    takes = parameters(kind)
    return kind(**{name: value for name, value in values.items() if name in takes})


def parameters(kind: Any) -> set[str]:
    """Names that the constructor takes, a base class's too where a subclass passes all on."""
    return {
        name
        for each in kind.__mro__
        if "__init__" in vars(each)
        for name in inspect.signature(each.__init__).parameters
    }


_hashes = itertools.count(1)


def unique(value: Any) -> bytes:
    """A hash of its own for every block: no prompt is a prefix of another."""
    return next(_hashes).to_bytes(32, "big")


class Engine:
    """The scheduler, and the requests that it is given."""

    def __init__(self, config: Any, pool: Any) -> None:
        from vllm.v1.core import kv_cache_utils as utils

        try:
            from vllm.utils.hashing import sha256
        except ImportError:
            from vllm.utils import sha256
        scheduler = config.scheduler_config
        kind: Any
        if hasattr(scheduler, "get_scheduler_cls"):
            kind = scheduler.get_scheduler_cls()
        else:
            from vllm.v1.core.sched.scheduler import Scheduler

            kind = Scheduler
        block, hashed = config.cache_config.block_size, config.cache_config.block_size
        if hasattr(utils, "resolve_kv_cache_block_sizes"):
            block, hashed = utils.resolve_kv_cache_block_sizes(pool, config)
        config.cache_config.num_gpu_blocks = pool.num_blocks
        self.depth = 2 if "Async" in kind.__name__ else 1
        self.scheduler = only(
            kind,
            {
                "vllm_config": config,
                "kv_cache_config": pool,
                "structured_output_manager": MagicMock(**{"should_advance.return_value": False}),
                "log_stats": False,
                "block_size": block,
                "hash_block_size": hashed,
            },
        )
        utils.init_none_hash(sha256)
        if "hash_block_size" not in parameters(kind):
            hashed = block
        self.hasher = utils.get_request_block_hasher(hashed, unique)

    def add(self, i: int, prompt: int, output: int) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        request = only(
            Request,
            {
                "request_id": f"r{i}",
                "prompt_token_ids": [7] * prompt,
                "sampling_params": SamplingParams(ignore_eos=True, max_tokens=output),
                "pooling_params": None,
                "eos_token_id": None,
                "block_hasher": self.hasher,
            },
        )
        self.scheduler.add_request(request)
        return request

    def output(self, ids: list[str], tokens: list[list[int]]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        return only(
            ModelRunnerOutput,
            {
                "req_ids": ids,
                "req_id_to_index": {name: i for i, name in enumerate(ids)},
                "sampled_token_ids": tokens,
                "logprobs": None,
                "prompt_logprobs_dict": {},
                "pooler_output": [],
            },
        )


def serves(config: Any, pool: Any, n: int, ctx: int, aligned: int, answer: int) -> dict[str, Any]:
    """One run: whether n requests decode together without a preemption, and the free blocks of every step."""
    from vllm.v1.request import RequestStatus

    engine = Engine(config, pool)
    scheduler = engine.scheduler
    output = output_tokens(n, ctx, config.scheduler_config.max_num_batched_tokens, aligned, answer)
    requests = [engine.add(i, ctx - output, output) for i in range(n)]
    waiting: deque[tuple[Any, list[str], list[list[int]]]] = deque()
    free: list[int] = []
    together = idle = 0
    preempted = False
    while scheduler.has_unfinished_requests():
        planned = scheduler.schedule()
        free.append(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
        ids = list(planned.num_scheduled_tokens)
        preempted = any(each.status == RequestStatus.PREEMPTED for each in requests)
        together = max(together, sum(each.num_computed_tokens >= each.num_prompt_tokens for each in requests))
        idle = 0 if ids else idle + 1
        if preempted or idle > 8:
            break
        done = [scheduler.requests[name] for name in ids]
        tokens = [[11] if each.num_computed_tokens >= each.num_prompt_tokens else [] for each in done]
        waiting.append((planned, ids, tokens))
        if len(waiting) >= engine.depth:
            planned, ids, tokens = waiting.popleft()
            scheduler.update_from_output(planned, engine.output(ids, tokens))
        if any(each.is_finished() for each in requests):
            break
    return {
        "n": n,
        "serves": together == n and not preempted,
        "together": together,
        "preempted": preempted,
        "steps": len(free),
        "free": hashlib.sha256(json.dumps(free).encode()).hexdigest()[:16],
    }


def users(
    config: Any, pool: Any, ctx: int, aligned: int, answer: int, start: int, most: int
) -> tuple[int, list[dict[str, Any]]]:
    """The largest n that is served, at most `most`; searched from `start`, which changes only the time it takes."""
    runs: list[dict[str, Any]] = []

    def good(n: int) -> bool:
        runs.append(serves(config, pool, n, ctx, aligned, answer))
        return bool(runs[-1]["serves"])

    low, high = 0, most + 1
    at, stride = max(1, min(start, most)), 1
    while low + 1 < high:
        if good(at):
            low, at = at, min(at + stride, most)
        else:
            high, at = at, max(at - stride, 1)
        stride *= 2
        if not low < at < high:
            at = (low + high) // 2
    return low, runs


def answers(config: Any, pool: Any, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One answer a question, which may change the pool and the scheduler's settings.

    ctx: tokens a request, max_model_len by default.  num_blocks: replaces the pool's.  n: one run of n requests;
    otherwise the largest n is searched, from `start` up to `most`.  answer: tokens of an answer.
    max_num_seqs, max_num_batched_tokens, async_scheduling: vLLM's settings.
    """
    out = []
    scheduler, cache = config.scheduler_config, config.cache_config
    aligned = cache.block_size if getattr(cache, "mamba_cache_mode", None) == "align" else 0
    for each in questions:
        for name in ("max_num_seqs", "max_num_batched_tokens", "async_scheduling"):
            if name in each:
                setattr(scheduler, name, each[name])
        if "max_num_batched_tokens" in each and getattr(scheduler, "max_num_scheduled_tokens", None) is not None:
            scheduler.max_num_scheduled_tokens = each["max_num_batched_tokens"]
        asked = copy.copy(pool)
        asked.num_blocks = each.get("num_blocks") or pool.num_blocks
        ctx, tokens = each.get("ctx") or config.model_config.max_model_len, each.get("answer") or ANSWER
        answer: dict[str, Any] = {
            "ctx": ctx,
            "num_blocks": asked.num_blocks,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "async_scheduling": bool(getattr(scheduler, "async_scheduling", False)),
            "scheduler": type(Engine(config, asked).scheduler).__name__,
        }
        if "n" in each:
            answer["runs"] = [serves(config, asked, each["n"], ctx, aligned, tokens)]
        else:
            most = min(each.get("most") or scheduler.max_num_seqs, scheduler.max_num_seqs)
            answer["users"], answer["runs"] = users(config, asked, ctx, aligned, tokens, each.get("start") or 1, most)
        out.append(answer)
    return out
