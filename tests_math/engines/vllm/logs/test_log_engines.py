"""Which engine and which rank a line belongs to: restarts, servers side by side, parallel ranks."""

from __future__ import annotations

from itertools import chain, zip_longest

import pytest

from membudget.engines.vllm.logs.log import parse
from membudget.engines.vllm.logs.verdict import verdict

pytestmark = pytest.mark.suite

GIB = 2**30


def at(tag: str, text: str, prefix: str = "") -> str:
    """A line of vLLM's logger."""
    return f"{prefix}{tag + ' ' if tag else ''}INFO 05-04 09:12:13 [file.py:1] {text}\n"


def server(pid: int, model: str, prefix: str = "") -> list[str]:
    """What an API server says first."""
    tag = f"(APIServer pid={pid})"
    return [
        at(tag, "vLLM API server version 0.19.1", prefix),
        at(tag, f"non-default args: {{'model': '{model}', 'gpu_memory_utilization': 0.8}}", prefix),
    ]


def engine(tag: str, model: str, tokens: int, prefix: str = "", worker: str = "", size: str = "10.5") -> list[str]:
    """What an engine says."""
    return [
        at(tag, f"Initializing a V1 LLM engine (v0.19.1) with config: model='{model}', dtype=torch.bfloat16", prefix),
        at(worker or tag, f"Model loading took {size} GiB memory and 3.100000 seconds", prefix),
        at(worker or tag, f"Available KV cache memory: {size} GiB", prefix),
        at(tag, f"GPU KV cache size: {tokens:,} tokens", prefix),
        at(tag, "Maximum concurrency for 4,096 tokens per request: 12.00x", prefix),
        at(tag, "init engine (profile, create kv cache, warmup model) took 9.10 seconds", prefix),
    ]


def test_a_restart_is_two_engines() -> None:
    """A container that restarts has the same process ids; each start is an engine of its own."""
    once = [*server(1, "a/b"), *engine("(EngineCore pid=97)", "a/b", 1000)]
    again = [*server(1, "a/b"), *engine("(EngineCore pid=97)", "a/b", 2000)]
    found = parse(once + again)
    assert [log.value("kv_tokens") for log in found] == [1000, 2000]
    assert [log.first_line for log in found] == [1, 9]


def test_a_restart_with_ranks_of_the_same_process_ids() -> None:
    """The workers of a restarted container belong to the new engine from their first line on."""

    def once(size: str) -> list[str]:
        ranks = [f"(Worker_TP{rank} pid={140 + rank})" for rank in (0, 1)]
        loading = [at(who, f"Model loading took {size} GiB memory and 3.100000 seconds") for who in ranks]
        have = [at(who, f"Available KV cache memory: {size} GiB") for who in ranks]
        return [*server(1, "a/b"), engine("(EngineCore pid=97)", "a/b", 0)[0], *loading, *have]

    # the second start's first worker lines come before its engine's own
    first, second = once("10.5"), once("20.5")
    second[2], second[3] = second[3], second[2]
    found = parse(first + second)
    assert [[f.printed for f in log.all("weights")] for log in found] == [["10.5 GiB"] * 2, ["20.5 GiB"] * 2]


def test_a_refused_start_and_the_next() -> None:
    """The figures of a start that was refused are not those of the start after it."""
    refused = [
        *server(1, "a/b"),
        *engine("(EngineCore pid=97)", "a/b", 1000)[:3],
        "(EngineCore pid=97) ValueError: No available memory for the cache blocks. Try increasing\n",
    ]
    found = parse([*refused, *server(1, "a/b"), *engine("(EngineCore pid=97)", "a/b", 2000)])
    assert [verdict(log).status for log in found] == ["refused", "started"]
    assert found[0].value("kv_tokens") is None


def test_untagged_restarts() -> None:
    """Versions without process tags: the banner separates, and without it the second loading does."""
    plain = engine("", "a/b", 1000)[1:]
    found = parse([*plain, *engine("", "a/b", 2000)[1:]])
    assert [log.value("kv_tokens") for log in found] == [1000, 2000]
    banner = [at("", "vLLM API server version 0.8.5"), *engine("", "a/b", 1000)]
    assert [log.value("kv_tokens") for log in parse(banner + banner)] == [1000, 1000]


def test_two_servers_in_one_terminal() -> None:
    """Interleaved lines of two servers go to the engine whose process is next in age."""
    one = [*server(100, "a/one"), *engine("(EngineCore pid=150)", "a/one", 1000)]
    two = [*server(200, "a/two"), *engine("(EngineCore pid=250)", "a/two", 2000)]
    mixed = [line for pair in zip_longest(one, two) for line in pair if line]
    found = parse(mixed)
    assert {(log.model, log.value("kv_tokens")) for log in found} == {("a/one", 1000), ("a/two", 2000)}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("vllm-a  | ", "vllm-b  | "),
        ("[pod/vllm-0/vllm] ", "[pod/vllm-1/vllm] "),
        ("May 04 09:12:13 spark vllm@a[11]: ", "May 04 09:12:13 spark vllm@b[12]: "),
        ("vllm-7c9d5b-x2x4z vllm ", "vllm-7c9d5b-k9k2p vllm "),
    ],
    ids=["compose", "kubectl", "journald", "stern"],
)
def test_two_containers_with_the_same_process_ids(left: str, right: str) -> None:
    """The container's name in front tells apart what the process ids do not."""
    one = [*server(1, "a/one", left), *engine("(EngineCore pid=97)", "a/one", 1000, left)]
    two = [*server(1, "a/two", right), *engine("(EngineCore pid=97)", "a/two", 2000, right)]
    found = parse(list(chain.from_iterable(zip(one, two, strict=True))))
    assert {(log.model, log.value("kv_tokens"), verdict(log).status) for log in found} == {
        ("a/one", 1000, "started"),
        ("a/two", 2000, "started"),
    }


def test_data_parallel_engines_share_what_the_server_said() -> None:
    """Each data-parallel rank sizes its own pool; the arguments are the server's."""
    lines = server(10, "a/b")
    for rank in range(4):
        lines += engine(
            f"(EngineCore_DP{rank} pid={20 + rank})", "a/b", 1000 + rank, "", f"(Worker_DP{rank}_TP0 pid={40 + rank})"
        )
    found = parse(lines)
    assert [(log.dp, log.value("kv_tokens")) for log in found] == [(rank, 1000 + rank) for rank in range(4)]
    assert all(log.setting("gpu_memory_utilization") == 0.8 for log in found)


@pytest.mark.parametrize(
    "tag",
    ["(Worker_TP{} pid={})", "(VllmWorker rank={} pid={})", "(VllmWorker TP{} pid={})", "(Worker_PP0_TP{} pid={})"],
)
def test_the_smallest_rank_decides(tag: str) -> None:
    """A figure is kept for each rank; for the pool the smallest counts, and the weights are that rank's."""
    lines = [*server(10, "a/b"), engine("(EngineCore_DP0 pid=20)", "a/b", 0)[0]]
    for rank, size in enumerate(["30.5", "30.25", "31.0"]):
        who = tag.format(rank, 40 + rank)
        lines.append(at(who, f"Model loading took {40 + rank}.0 GiB memory and 3.100000 seconds"))
        lines.append(at(who, f"Available KV cache memory: {size} GiB"))
    found = parse(lines)
    assert len(found) == 1
    log = found[0]
    assert len({figure.rank for figure in log.all("available_kv")}) == 3
    assert log.value("available_kv") == round(30.25 * GIB)
    assert log.value("weights") == 41 * GIB


def test_ranks_of_several_machines() -> None:
    """Ray names the machine: the same process id on two machines is two ranks."""
    lines = engine("(EngineCore pid=20)", "a/b", 500)[:1]
    for address, size in (("10.0.0.7", "30.5"), ("10.0.0.8", "29.5")):
        lines.append(
            at(f"\x1b[36m(RayWorkerWrapper pid=300, ip={address})\x1b[0m", f"Available KV cache memory: {size} GiB")
        )
    found = parse(lines)
    assert len(found) == 1
    assert [figure.rank for figure in found[0].all("available_kv")] == ["pid=300@10.0.0.7", "pid=300@10.0.0.8"]


def test_a_log_that_starts_in_the_middle() -> None:
    """Workers speak before their engine does: still one engine."""
    lines = [at(f"(Worker_TP{rank} pid={40 + rank})", f"Available KV cache memory: 4{rank}.5 GiB") for rank in (1, 0)]
    lines += [at("(EngineCore_DP0 pid=20)", "GPU KV cache size: 973,760 tokens")]
    found = parse(lines)
    assert [(log.value("available_kv"), log.value("kv_tokens")) for log in found] == [(40.5 * GIB, 973_760)]
    both = [
        at(f"(Worker_DP{rank}_TP0 pid={40 + rank})", f"Available KV cache memory: 4{rank}.5 GiB") for rank in (0, 1)
    ]
    both += [at(f"(EngineCore_DP{rank} pid={20 + rank})", f"GPU KV cache size: {rank}00 tokens") for rank in (1, 0)]
    found = parse(both)
    assert sorted((log.dp, log.value("available_kv")) for log in found) == [(0, 40.5 * GIB), (1, 41.5 * GIB)]


def test_a_log_pasted_into_one_line() -> None:
    """A forum post that lost its newlines: each record is still its own."""
    lines = [
        at("(Worker pid=224024)", "Available KV cache memory: -2.28 GiB").rstrip(),
        "(EngineCore_DP0 pid=223840) ERROR 10-25 13:08:43 [core.py:708] EngineCore failed to start.",
        "(EngineCore_DP0 pid=223840) ERROR 10-25 13:08:43 [core.py:708] ValueError: No available memory for the cache "
        "blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ]
    found = parse([" ".join(lines)])
    assert len(found) == 1
    assert verdict(found[0]).kind == "no_kv_memory"
    assert found[0].value("available_kv") == -round(2.28 * GIB)


def test_a_refusal_that_is_cut_is_still_that_refusal() -> None:
    """The end of the line is missing: the kind and the figures before it are found."""
    cut = (
        "ValueError: To serve at least one request with the model's max seq len (262144), (12.4 GiB KV cache is needed"
    )
    found = parse([cut + ", which is larger than the available KV cache memory\n"])
    assert verdict(found[0]).kind == "max_model_len"
    assert found[0].value("needed_kv") == round(12.4 * GIB)
    assert found[0].value("available_kv") is None


def test_records_of_pythons_json_logger() -> None:
    """A logging config that writes JSON: the message, its process and its name."""
    import json

    def record(name: str, pid: int, message: str) -> str:
        return json.dumps({"levelname": "INFO", "processName": name, "process": pid, "message": message}) + "\n"

    found = parse(
        [
            record("Worker_TP0", 40, "Available KV cache memory: 40.5 GiB"),
            record("Worker_TP1", 41, "Available KV cache memory: 39.5 GiB"),
            record("EngineCore", 20, "GPU KV cache size: 1,000 tokens"),
        ]
    )
    assert [[f.rank for f in log.all("available_kv")] for log in found] == [["TP0", "TP1"]]
    assert found[0].value("available_kv") == round(39.5 * GIB)


def test_two_records_without_a_newline_between() -> None:
    """Processes that share a terminal write into each other's lines; both figures are found, with their ranks."""
    first = at("(Worker_TP0 pid=40)", "Available KV cache memory: 30.5 GiB").rstrip("\n")
    found = parse([first + at("(Worker_TP1 pid=41)", "Available KV cache memory: 29.5 GiB")])
    assert [(f.rank, f.printed) for f in found[0].all("available_kv")] == [("TP0", "30.5 GiB"), ("TP1", "29.5 GiB")]


def test_a_text_that_quotes_a_log_is_not_a_log() -> None:
    """A prompt, a source line and a grep that contain a message give no figure."""
    message = "Available KV cache memory: 5.0 GiB"
    assert parse([f"INFO 05-04 09:12:13 [logger.py:40] Received request cmpl-1: prompt: '{message}'\n"]) == []
    assert parse([f'    logger.info("{message}")\n']) == []
    assert parse([f"grep '{message}' server.log\n"]) == []


def test_secrets_do_not_leave_the_parser() -> None:
    """Keys and tokens in the dumped arguments are not kept, shown or written."""
    import json

    from membudget.engines.vllm.logs.compare import compare
    from membudget.engines.vllm.logs.document import as_json
    from membudget.engines.vllm.logs.text import explain

    args = "{'model': 'a/b', 'api_key': ['sk-verysecret1'], 'hf_token': 'hf_abcdefghijklmnop', 'max_model_len': 64}"
    lines = [
        at("", f"non-default args: {args}"),
        at("", "Available KV cache memory: 5.0 GiB api_key='sk-verysecret1'"),
    ]
    log = parse(lines)[0]
    shown = json.dumps(as_json(log)) + "\n".join(explain(log, compare(log, None)))
    assert "verysecret" not in shown
    assert "abcdefghijk" not in shown
    assert log.setting("max_model_len") == 64
