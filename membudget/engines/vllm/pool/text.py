"""The pool as a person reads it in a terminal."""

from __future__ import annotations

from membudget.engines.vllm.pool.result import Pool, PoolGroup
from membudget.units import both, gib, short

_KINDS = {
    "full": "full attention",
    "mla": "latent (MLA)",
    "sliding": "sliding window",
    "chunked": "chunked attention",
    "mamba": "recurrent state",
    "cross": "cross attention",
}


def lines(pool: Pool, users: int | None = None) -> list[str]:
    """Groups as a table, the figures, the verdict, then the reasons."""
    out = [f"vLLM {pool.version} on {pool.platform}: {both(pool.available)} for the KV pool", ""]
    if pool.groups:
        out.append(f"{'groups':>6}  {'layers':<22}{'block':>7}  {'page':>12}  {'blocks a request':>16}")
    for count, each in _alike(pool):
        name = f"{each.layers} {_KINDS[each.kind]}"
        if each.window:
            name += f" {each.window:,}"
        out.append(
            f"{count:>6}  {name:<22}{each.block_size:>7,}  {short(each.page_size):>12}  {each.blocks_per_request:>16,}"
        )
    out += [
        "",
        f"a block       {pool.bytes_per_block:,} B",
        f"blocks        {pool.num_blocks:,} ({gib(pool.used)})",
        f"KV cache size {pool.tokens:,} tokens, as vLLM {pool.version} prints it",
        f"concurrency   {pool.max_concurrency:.2f}x for {pool.request_len:,} tokens a request",
        *([f"users         {users:,} at once of {pool.request_len:,} tokens each"] if users is not None else []),
        f"a request     {pool.blocks_per_request:,} blocks, {both(pool.need)}",
        f"longest       {pool.longest:,} tokens",
        "",
        "starts" if pool.starts else f"does not start: {pool.error}",
        "",
    ]
    out += [f"- {each}" for each in pool.why]
    return out


def _alike(pool: Pool) -> list[tuple[int, PoolGroup]]:
    """Groups that differ in nothing, counted."""
    found: dict[PoolGroup, int] = {}
    for each in pool.groups:
        found[each] = found.get(each, 0) + 1
    return [(count, each) for each, count in found.items()]
