"""vLLM's scheduler in integers: which blocks n requests hold, step by step, until the first one ends.

Restated from v1/core/sched/scheduler.py, v1/core/kv_cache_manager.py and
v1/core/single_type_kv_cache_manager.py of 0.20.2 to 0.32.0.  A decoding request is looked
at only in the steps in which one of its groups takes or frees a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Tokens of an answer, where nobody says another number: the last request joins before the first has made so many.
ANSWER = 560


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Holding:
    """Groups that hold the same blocks of a request.

    count: how many groups.  kind: full, sliding, chunked, align (states, one a block boundary), fixed.
    block: tokens a block.  window: tokens, of sliding and chunked.  cap: blocks that admission asks at most, or None.
    fixed: blocks that do not depend on the length (kind fixed).  spare: blocks of draft tokens.
    checkpoint: a prompt's last chunk, of two blocks and more, keeps the state before its end too.
    """

    count: int
    kind: str
    block: int
    window: int = 0
    cap: int | None = None
    fixed: int = 0
    spare: int = 0
    checkpoint: bool = False


@dataclass(frozen=True)
class Run:
    """What all requests share.

    ctx: tokens a request ends at.  batched: max_num_batched_tokens.  seqs: max_num_seqs.
    overlap: the next step is scheduled before the last one's output is there (async scheduling).
    settled: windows are freed behind what was computed, not behind what was scheduled (since 0.26).
    aligned: block that prefill chunks end at, or 0.  gaps: states behind gaps are freed too (since 0.30).
    replay: the last cached position leaves a token to compute (since 0.32).
    answer: tokens of `ctx` that a request makes itself, at least.
    """

    ctx: int
    batched: int
    seqs: int
    overlap: bool
    settled: bool
    aligned: int
    gaps: bool
    replay: bool
    answer: int = ANSWER

    def output(self, n: int) -> int:
        """Tokens that each of n requests makes: `answer`, or as many as it takes until the last has joined."""
        chunk = self.batched
        if self.aligned and self.batched >= self.aligned:
            chunk = self.batched // self.aligned * self.aligned
        steps = n * (cdiv(self.ctx, chunk) + (2 if self.aligned else 0))
        if not self.aligned and self.batched > n:
            steps = min(steps, cdiv(n * self.ctx, self.batched - n))
        return min(max(min(self.answer, self.ctx // 2), steps + 64), self.ctx - 1)


class _Span:
    """The block table of a request in full, sliding and chunked groups: what is freed is at its front."""

    __slots__ = ("count", "gone", "holding", "length")

    def __init__(self, holding: Holding) -> None:
        self.holding, self.count = holding, holding.count
        self.length = self.gone = 0

    def release(self, settled: int) -> int:
        """Blocks freed once `settled` tokens are computed."""
        holding = self.holding
        if holding.kind == "sliding":
            skipped = settled - holding.window + 1
        elif holding.kind == "chunked":
            skipped = settled // holding.window * holding.window
        else:
            return 0
        gone = min(max(skipped, 0) // holding.block, self.length)
        freed = gone - self.gone
        if freed <= 0:
            return 0
        self.gone = gone
        return freed * self.count

    def first(self, tokens: int) -> int:
        """Blocks that admission asks for a prompt of `tokens`."""
        need = cdiv(tokens, self.holding.block) + self.holding.spare
        return self.count * (need if self.holding.cap is None else min(need, self.holding.cap))

    def grow(self, start: int, end: int) -> int:
        """Blocks taken so that tokens up to `end` have a slot."""
        need = cdiv(end, self.holding.block) + self.holding.spare - self.length
        if need <= 0:
            return 0
        self.length += need
        return need * self.count

    def residues(self, flight: int) -> tuple[int, ...]:
        """Computed tokens modulo the block at which a decoding request takes or frees one."""
        block = self.holding.block
        if self.holding.kind == "sliding":
            return (0, (self.holding.window - 1 + flight) % block)
        return (0, flight % block) if self.holding.kind == "chunked" else (0,)


class _Fixed:
    """States, or cross attention, whose blocks do not depend on the length."""

    __slots__ = ("count", "holding", "taken")

    def __init__(self, holding: Holding) -> None:
        self.holding, self.count, self.taken = holding, holding.count, False

    def release(self, settled: int) -> int:
        return 0

    def first(self, tokens: int) -> int:
        return self.holding.fixed * self.count

    def grow(self, start: int, end: int) -> int:
        if self.taken:
            return 0
        self.taken = True
        return self.holding.fixed * self.count

    def residues(self, flight: int) -> tuple[int, ...]:
        return ()


def _kept_inside(block: int, start: int, end: int) -> bool:
    """Whether a chunk can export the state at its last whole block (is_mamba_prefill_checkpoint_valid)."""
    position = (end - 1) // block * block
    return start % block == 0 and cdiv(end, block) - 2 > (start - 1) // block and start + block <= position


class _States:
    """States in mode align: the running one, and the one before it until its step is settled."""

    __slots__ = ("begun", "count", "gaps", "holding", "last", "length", "live", "prompt", "retired")

    def __init__(self, holding: Holding, gaps: bool, prompt: int) -> None:
        self.holding, self.count, self.gaps, self.prompt = holding, holding.count, gaps, prompt
        self.live: set[int] = set()
        self.length = self.retired = 0
        self.last: int | None = None
        self.begun = False

    def release(self, settled: int) -> int:
        block, live = self.holding.block, self.live
        freed = 0
        end = min(max(settled - 1, 0) // block, self.length)
        if self.gaps:
            gone = [i for i in live if self.retired <= i < end]
            live.difference_update(gone)
            freed = len(gone)
            self.retired = max(self.retired, end)
        else:
            at = end - 1
            while at >= 0 and at in live:
                live.discard(at)
                freed, at = freed + 1, at - 1
        if self.last is not None and self.last < cdiv(settled, block) - 1 and self.last in live:
            live.discard(self.last)
            freed += 1
        return freed * self.count

    def _checkpoint(self, start: int, end: int) -> int:
        """1 where the state at the last whole block before `end` is kept too."""
        return int(self.holding.checkpoint and end >= self.prompt and _kept_inside(self.holding.block, start, end))

    def first(self, tokens: int) -> int:
        most = 1 + self.holding.spare + self._checkpoint(0, tokens)
        return self.count * min(cdiv(tokens, self.holding.block) + self.holding.spare, most)

    def grow(self, start: int, end: int) -> int:
        spare, live = self.holding.spare, self.live
        need, kept = cdiv(end, self.holding.block) + spare, self._checkpoint(start, end)
        if need <= self.length and not kept:
            self.begun = True
            return 0
        before, skipped = self.length, need - spare - 1
        if self.begun:
            self.last = before - 1 - spare
        elif before:
            self.last = before - 1
        length = max(before, skipped - kept) if before < skipped else before
        if self.begun:
            for at in range(before - spare, before):
                if at >= skipped - kept:
                    break
                live.discard(at)
                live.add(length)
                length += 1
        fresh = max(need - length, 0)
        live.update(range(length, length + fresh))
        self.length, self.begun = length + fresh, True
        return fresh * self.count

    def residues(self, flight: int) -> tuple[int, ...]:
        block = self.holding.block
        return (0, 1 % block, 2 % block)


_Table = _Span | _Fixed | _States


class _Request:
    """One request: its tables, tokens computed, and the tokens of the last step where their output is outstanding."""

    __slots__ = ("computed", "ended", "flight", "stepped", "tables")

    def __init__(self, holdings: Iterable[Holding], run: Run, prompt: int) -> None:
        self.tables: list[_Table] = []
        for each in holdings:
            if each.kind == "align":
                self.tables.append(_States(each, run.gaps, prompt))
            else:
                self.tables.append(_Fixed(each) if each.kind == "fixed" else _Span(each))
        self.computed = self.flight = self.stepped = 0
        self.ended = 0

    def release(self, step: int, run: Run) -> int:
        settled = self.computed
        if run.overlap and run.settled and self.stepped == step - 1:
            settled -= self.flight
        settled = max(settled, 0)
        freed = 0
        for table in self.tables:
            freed += table.release(settled)
        return freed

    def grow(self, step: int, tokens: int) -> int:
        start, end = self.computed, self.computed + tokens
        taken = 0
        for table in self.tables:
            taken += table.grow(start, end)
        self.computed, self.flight, self.stepped = end, tokens, step
        return taken

    def next_change(self, flight: int) -> int:
        """Steps of decoding until a table changes; `computed` is what the next step starts from."""
        best = 1 << 60
        for table in self.tables:
            block = table.holding.block
            for residue in table.residues(flight):
                best = min(best, (residue - self.computed) % block)
        return best


def _chunk(run: Run, prompt: int, start: int, tokens: int, checkpoint: bool) -> int:
    """Tokens of a prefill chunk of a hybrid, so that it ends where a state is kept (`_mamba_block_aligned_split`)."""
    block, end = run.aligned, start + tokens
    if not block or start >= prompt:
        return tokens
    inside = checkpoint and end >= prompt and _kept_inside(block, start, end)
    last = 0 if inside else (prompt - 1 if run.replay else prompt) // block * block
    if end < prompt:
        aligned = end // block * block
        if aligned > start or block <= run.batched:
            end = aligned
    stops = [last]
    if start % block and not inside:
        stops.append((start // block + 1) * block)
    end = min((stop for stop in stops if start < stop < end), default=end)
    return max(end - start, 0)


def serves(holdings: Sequence[Holding], blocks: int, n: int, run: Run) -> bool:
    """Whether n requests decode together, none preempted before the first one ends.

    blocks: of the pool without the null block.
    """
    if n > run.seqs or n >= run.batched:
        return False
    free, joined = blocks, 0
    for each in steps(holdings, blocks, n, run):
        free, joined = each
    return free >= 0 and joined == n


def steps(holdings: Sequence[Holding], blocks: int, n: int, run: Run) -> Iterator[tuple[int, int]]:
    """Free blocks and decoding requests after every step, from n requests' arrival until the first one ends.

    Negative free blocks, and nothing more, where a request would be preempted.
    """
    output = run.output(n)
    prompt = run.ctx - output
    checkpoint = any(each.checkpoint for each in holdings)
    flight = 1 if run.overlap and run.settled else 0
    asked = sum(table.first(prompt) for table in _Request(holdings, run, prompt).tables)
    running: list[_Request] = []
    agenda: dict[int, list[int]] = {}
    decoding = 0  # running[:decoding] have their whole prompt
    free, step, end = blocks, 0, None
    while end is None or step < end:
        step += 1
        budget = run.batched - decoding
        last = end is not None and run.overlap and step == end
        for i in sorted(agenda.pop(step, ())):
            request = running[i]
            if last and request.ended == running[0].ended:
                continue  # its last token is on the way
            # what was computed in the steps in which nothing changed
            skipped = step - 1 - request.stepped
            if skipped > 0:
                request.computed += skipped
                request.flight, request.stepped = 1, step - 1
            free += request.release(step, run)
            free -= request.grow(step, 1)
            if free < 0:
                yield free, decoding
                return
            wait = 1 if step - request.ended < 4 else 1 + request.next_change(flight)
            agenda.setdefault(step + wait, []).append(i)
        at = decoding
        while at < len(running) and budget > 0:
            request = running[at]
            tokens = _chunk(run, prompt, request.computed, min(prompt - request.computed, budget), checkpoint)
            if tokens == 0:
                at += 1
                continue
            free += request.release(step, run)
            free -= request.grow(step, tokens)
            if free < 0:
                yield free, decoding
                return
            budget -= tokens
            at += 1
        while budget > 0 and len(running) < n:
            tokens = _chunk(run, prompt, 0, min(prompt, budget), checkpoint)
            if tokens == 0 or asked > free:
                break
            request = _Request(holdings, run, prompt)
            need = request.grow(step, tokens)
            if need > free:
                break
            free -= need
            running.append(request)
            budget -= tokens
        while decoding < len(running) and running[decoding].computed >= prompt:
            request = running[decoding]
            request.ended = step
            agenda.setdefault(step + 1, []).append(decoding)
            decoding += 1
            if end is None:
                end = step + output - 1 + int(run.overlap)
        yield free, decoding
        if not running:
            return
