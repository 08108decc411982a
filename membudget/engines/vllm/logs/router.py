"""Which engine, and which rank of it, a line of the log belongs to.

A file may hold restarts, two servers side by side, eight data-parallel engines with eight
ranks each.  vLLM tags lines with ``(Name pid=N)``; docker compose, kubectl and journald
put the name of the container in front.  Where neither says anything, the order decides.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from membudget.engines.vllm.logs.kinds import Event
from membudget.engines.vllm.logs.record import EngineLog

_TAG = re.compile(r"\(([A-Za-z_][\w.:-]*(?: (?:rank=)?\w+)?),? pid=(\d+)(?:, ip=([\w.:]+))?\)")
_SOURCE = re.compile(
    r"^\s*(?:([\w.@-]+)\s+\| "  # docker compose, docker service logs
    r"|\[(pod/[^\]\s]+)\] "  # kubectl logs --prefix
    r"|\w{3} +\d+ \d\d:\d\d:\d\d(?:\.\d+)? (\S+ [^\s:\[]+(?:\[\d+\])?): "  # journald, syslog
    r"|\d{4}-\d\d-\d\dT\S+ (\S+ [^\s:\[]+(?:\[\d+\])?): "  # journald -o short-iso
    r"|([\w-]+-(?:[a-z0-9]{5}|\d+) [\w-]+) )"  # stern
)
_RANK = re.compile(r"(?:(?:DP|PP|TP|EP|PCP|DCP)\d+_?)+|rank=\d+")
_DP = re.compile(r"DP(\d+)|^(?:EngineCore|CoreEngine)_(\d+)$")
#: Engines kept of one log: what restarts more often tells nothing new.
MOST = 4096
#: Figures that mean that the preamble of an engine is over.
_STARTED = ("weights", "available_kv", "kv_tokens", "max_concurrency", "num_blocks", "free_memory")


class Speaker(NamedTuple):
    """Who printed a line.

    source: container or unit, "" where the log has one only.  role: server, engine,
    worker, or "" (no tag, or one process for all).  rank: "" for the engine as a whole.
    """

    source: str
    role: str
    pid: int | None
    dp: int | None
    rank: str
    remote: bool


def speaker(head: str, tags: str) -> Speaker:
    """Read who speaks from the head of a line and from its tags."""
    match = _SOURCE.match(head)
    source = next((group for group in match.groups() if group), "") if match else ""
    role, pid, dp, rank, remote = "", None, None, "", False
    for name, number, address in _TAG.findall(tags):
        this = _role(name)
        if this == "" and role:
            continue
        role, pid, remote = this, int(number[:18]), bool(address)
        found = _DP.search(name)
        # Ray puts its own tag around the worker's: the engine's data-parallel index is kept
        dp = int(found[1] or found[2]) if found else dp
        if this == "worker":
            ranked = _RANK.search(name)
            rank = ranked[0].strip("_") if ranked else f"pid={number}" + (f"@{address}" if address else "")
    return Speaker(source, role, pid, dp, rank, remote)


def _role(name: str) -> str:
    low = name.lower()
    if low.startswith(("apiserver", "api_server", "dpsupervisor", "dpcoordinator", "frontend")):
        return "server"
    if low.startswith(("enginecore", "coreengine")):
        return "engine"
    return "worker" if "worker" in low else ""


class Router:
    """Hands each message the `EngineLog` it belongs to."""

    __slots__ = ("_by_pid", "_current", "_engines", "_owner")

    def __init__(self) -> None:
        self._engines: list[EngineLog] = []
        self._current: dict[str, EngineLog] = {}
        self._by_pid: dict[tuple[str, str, int], EngineLog] = {}
        #: id of an engine -> the server's preamble it came from
        self._owner: dict[int, EngineLog] = {}

    @property
    def engines(self) -> list[EngineLog]:
        """All engines, in the order of their first line."""
        return self._engines

    def current(self, source: str) -> EngineLog | None:
        """The engine that spoke last in that source."""
        return self._current.get(source)

    def only(self) -> EngineLog | None:
        """The engine that spoke last, in a log of one source."""
        return next(iter(self._current.values())) if len(self._current) == 1 else None

    def route(self, who: Speaker, event: Event | None, figure: str, line: int) -> EngineLog:
        """The engine of a message.

        event: as in `messages`.  figure: the message's first figure, which tells a new
        start from the old where there is neither a tag nor a banner.
        """
        if who.role == "server":
            engine = self._server(who, event, line)
        elif who.role == "engine":
            engine = self._engine(who, event, line)
        elif who.role == "worker":
            engine = self._worker(who, line)
        else:
            engine = self._untagged(who, event, figure, line)
        engine.last_line = line
        self._current[who.source] = engine
        return engine

    def _new(self, who: Speaker, line: int) -> EngineLog:
        if len(self._engines) >= MOST:
            return self._engines[-1]
        engine = EngineLog(f"engine {len(self._engines)}", who.source, line)
        self._engines.append(engine)
        return engine

    def _untagged(self, who: Speaker, event: Event | None, figure: str, line: int) -> EngineLog:
        if who.pid is None:
            engine = self._current.get(who.source)
            if engine is None or _again(engine, event, figure):
                engine = self._new(who, line)
            return engine
        key = (who.source, "process", who.pid)
        engine = self._by_pid.get(key)
        if engine is None:
            engine = self._unclaimed(who) or self._new(who, line)
        elif _again(engine, event, figure):
            self._forget(engine)
            engine = self._new(who, line)
        self._by_pid[key] = engine
        return engine

    def _unclaimed(self, who: Speaker) -> EngineLog | None:
        """What lines without a tag began, as long as no process has taken it over."""
        before = self._current.get(who.source)
        free = before is not None and not _over(before) and all(before is not taken for taken in self._by_pid.values())
        return before if free else None

    def _server(self, who: Speaker, event: Event | None, line: int) -> EngineLog:
        key = (who.source, "server", who.pid or 0)
        engine = self._by_pid.get(key)
        if engine is None or (event in (Event.BANNER, Event.ARGS) and _over(engine)):
            if engine is not None:
                self._forget(engine)
            engine = self._unclaimed(who) or self._new(who, line)
            self._by_pid[key] = engine
        return engine

    def _engine(self, who: Speaker, event: Event | None, line: int) -> EngineLog:
        key = (who.source, "engine", who.pid or 0)
        engine = self._by_pid.get(key)
        if engine is not None and not (event is Event.INIT and Event.INIT in engine.events):
            return engine
        if engine is not None:
            self._forget(engine)
        preamble = self._nearest(who, "server")
        if preamble is None:
            engine = self._unclaimed(who) or self._of_workers(who, event) or self._new(who, line)
        elif Event.INIT not in preamble.events and not self._claimed(preamble):
            engine = preamble
        else:
            engine = self._sibling(preamble, who, line)
        engine.dp = who.dp
        self._by_pid[key] = engine
        return engine

    def _worker(self, who: Speaker, line: int) -> EngineLog:
        key = (who.source, "worker", who.pid or 0)
        engine = self._by_pid.get(key)
        if engine is None or engine not in self._engines:
            before = self._current.get(who.source)
            fits = before is not None and (who.dp is None or before.dp in (None, who.dp))
            engine = self._nearest(who, "engine") or self._nearest(who, "worker") or (before if fits else None)
            engine = engine or self._new(who, line)
            if engine.dp is None:
                engine.dp = who.dp
            self._by_pid[key] = engine
        return engine

    def _of_workers(self, who: Speaker, event: Event | None) -> EngineLog | None:
        """The engine whose workers spoke before it did, in a log that starts in the middle."""
        found = None if event is Event.INIT else self._nearest(who, "worker")
        return found if found is not None and not self._claimed(found) else None

    def _nearest(self, who: Speaker, role: str) -> EngineLog | None:
        """The process of that role that may be the parent: children get the larger pid, mostly."""
        found = [
            (pid, engine)
            for (source, this, pid), engine in self._by_pid.items()
            if source == who.source
            and this == role
            and (who.dp is None or role == "server" or engine.dp in (None, who.dp))
        ]
        if not found:
            return None
        if role != "worker" and not who.remote and (older := [entry for entry in found if entry[0] < (who.pid or 0)]):
            return max(older, key=lambda entry: entry[0])[1]
        return max(found, key=lambda entry: entry[1].first_line)[1]

    def _claimed(self, preamble: EngineLog) -> bool:
        return any(engine is preamble for (_, role, _), engine in self._by_pid.items() if role == "engine")

    def _sibling(self, preamble: EngineLog, who: Speaker, line: int) -> EngineLog:
        """Another engine of the same server (data parallel): it shares what the server said."""
        engine = self._new(who, line)
        engine.settings = {name: value for name, value in preamble.settings.items() if value.source == "args"}
        for name in ("version", "model", "configured_max_model_len", "max_num_batched_tokens"):
            if name in preamble.figures:
                engine.figures[name] = list(preamble.figures[name])
        engine.events = {name: at for name, at in preamble.events.items() if name in (Event.BANNER, Event.ARGS)}
        self._owner[id(engine)] = preamble
        return engine

    def _forget(self, engine: EngineLog) -> None:
        """A process id may come back, in a restarted container, for another engine."""
        gone = {id(engine)} | {child for child, owner in self._owner.items() if owner is engine}
        for key in [key for key, value in self._by_pid.items() if id(value) in gone]:
            del self._by_pid[key]


def _over(engine: EngineLog) -> bool:
    """Whether the preamble is over: what follows a new banner belongs to another engine."""
    return Event.INIT in engine.events or bool(engine.refusals) or any(name in engine.figures for name in _STARTED)


def _again(engine: EngineLog, event: Event | None, figure: str) -> bool:
    """Whether an untagged message starts a new engine in this process or file."""
    if event is Event.BANNER:
        return _over(engine)
    if event is Event.ARGS:
        return _over(engine) or Event.ARGS in engine.events
    if event is Event.INIT:
        return _over(engine)
    sized = "kv_tokens" in engine.figures or "max_concurrency" in engine.figures or bool(engine.refusals)
    return figure == "weights" and sized
