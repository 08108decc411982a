"""Excerpts: what a log leaves out is said by an option, and what it says in unusual ways is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm import speculative
from membudget.engines.vllm.logs.checks import differences, identity
from membudget.engines.vllm.logs.compare import compare
from membudget.engines.vllm.logs.kinds import RefusalKind, Status
from membudget.engines.vllm.logs.log import parse
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.suggestions import suggestions
from membudget.engines.vllm.logs.verdict import verdict
from membudget.model import Model

pytestmark = pytest.mark.suite
GIB = 2**30
QWEN = "Qwen/Qwen3.5-27B"
Ask = Callable[..., tuple[int, Any]]

#: https://github.com/noonghunna/club-3090/issues/642: two RTX 3090, vLLM 0.24.0; the model is a folder.
TWO_3090 = [
    "(APIServer pid=1) INFO 07-08 15:36:04 [api_utils.py:273] non-default args: {'model': '~/qwen3.6-27b-int4', "
    "'dtype': 'float16', 'max_model_len': 262144, 'tensor_parallel_size': 2, 'kv_cache_dtype': 'fp8_e5m2', "
    "'enable_prefix_caching': True, 'max_num_batched_tokens': 8192, 'max_num_seqs': 2, "
    "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}}\n",
    "(EngineCore pid=92) INFO 07-08 15:36:32 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: "
    "model='~/qwen3.6-27b-int4', speculative_config=SpeculativeConfig(method='mtp', model='~/qwen3.6-27b-int4', "
    "num_spec_tokens=3), dtype=torch.float16, max_seq_len=262144, tensor_parallel_size=2, kv_cache_dtype=fp8_e5m2, "
    "device_config=cuda, enable_prefix_caching=True, enable_chunked_prefill=True\n",
    "(Worker_TP0 pid=101) INFO 07-08 15:38:03 [gpu_worker.py:508] Available KV cache memory: 11.05 GiB\n",
    "(EngineCore pid=92) INFO 07-08 15:38:03 [kv_cache_utils.py:2146] GPU KV cache size: 623,873 tokens\n",
    "(EngineCore pid=92) INFO 07-08 15:38:03 [kv_cache_utils.py:2147] Maximum concurrency for 262,144 tokens per "
    "request: 2.38x\n",
    "(EngineCore pid=92) INFO 07-08 15:38:40 [core.py:337] init engine (profile, create kv cache, warmup model) took "
    "92.00 s\n",
]
#: A DGX Spark, vLLM 0.23.1rc1, NVFP4 with two MTP tokens; the drafter is named in few lines only.
SPARK = [
    "(APIServer pid=1) INFO 07-02 21:58:11 [api_utils.py:273] non-default args: {'model': 'nvidia/Qwen3.6-27B-NVFP4', "
    "'max_model_len': 262144, 'gpu_memory_utilization': 0.7, 'kv_cache_dtype': 'fp8', 'enable_prefix_caching': True, "
    "'max_num_batched_tokens': 65536, 'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 2}}\n",
    "(EngineCore pid=182) INFO 07-02 21:58:42 [core.py:114] Initializing a V1 LLM engine (v0.23.1rc1) with config: "
    "speculative_config=SpeculativeConfig(method='mtp', model='nvidia/Qwen3.6-27B-NVFP4', num_spec_tokens=2), ...\n",
    "(EngineCore pid=182) INFO 07-02 22:01:13 [interface.py:773] Setting attention block size to 1600 tokens.\n",
    "(EngineCore pid=182) INFO 07-02 22:04:55 [gpu_worker.py:515] Available KV cache memory: 48.6 GiB\n",
    "(EngineCore pid=182) INFO 07-02 22:04:55 [kv_cache_utils.py:2146] GPU KV cache size: 1,394,129 tokens\n",
    "(EngineCore pid=182) INFO 07-02 22:04:55 [kv_cache_utils.py:2147] Maximum concurrency for 262,144 tokens per "
    "request: 5.32x\n",
]


def one(lines: list[str]) -> EngineLog:
    """The only engine of a log."""
    (found,) = parse(lines)
    return found


@pytest.fixture
def written(tmp_path: Path) -> Callable[[list[str]], str]:
    """Writes lines to a file."""

    def write(lines: list[str]) -> str:
        path = tmp_path / "server.log"
        path.write_text("".join(lines), encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("lines", [TWO_3090, SPARK], ids=["two 3090", "spark"])
def test_a_drafter_that_the_log_names_is_in_the_arithmetic(lines: list[str], model: Callable[[str], Model]) -> None:
    """Real starts with MTP layers: tokens, concurrency and block size are what was printed."""
    found = compare(one(lines), model(QWEN))
    assert len(found.checks) >= 2
    assert [check for check in found.checks if not check.holds] == []
    assert found.request is not None
    assert found.request.draft_layers == 1


def test_the_model_is_given_where_the_log_has_a_path(ask: Ask, written: Callable[[list[str]], str]) -> None:
    """--model fills in what a folder of another machine cannot."""
    path = written(TWO_3090)
    code, (without,) = ask("log", path)
    assert (code, without["arithmetic"]) == (0, None)
    code, (found,) = ask("log", path, "--model", QWEN)
    assert code == 0
    assert found["arithmetic"]["num_blocks"] > 0


def test_settings_are_given_where_the_log_has_none(ask: Ask, written: Callable[[list[str]], str]) -> None:
    """The last lines alone: vLLM's own options make the same question of it."""
    path = written([line.partition("] ")[2] for line in TWO_3090[2:]])
    options = ["--tp", "2", "--kv-cache-dtype", "fp8_e5m2", "--dtype", "float16", "--enable-prefix-caching"]
    options += ["--max-num-batched-tokens", "8192", "--vllm-version", "0.24.0"]
    drafter = '{"method": "mtp", "num_speculative_tokens": 3}'
    code, (found,) = ask("log", path, "--model", QWEN, *options, "--speculative-config", drafter)
    assert code == 0
    assert {check["name"] for check in found["checks"] if check["holds"]} >= {"kv_tokens", "max_concurrency"}
    # without the drafter a token is smaller, so more of them would fit
    code, (found,) = ask("log", path, "--model", QWEN, *options)
    assert code == 1
    assert [check["name"] for check in found["differences"]] == ["kv_tokens", "max_concurrency"]


def test_an_option_that_contradicts_the_log_is_named(ask: Ask, written: Callable[[list[str]], str]) -> None:
    """The log's own lines win."""
    path = written(TWO_3090)
    code, (found,) = ask("log", path, "--tp", "4", "--vllm-version", "0.23.0", "--max-num-seqs", "2")
    assert code == 1
    assert {check["name"] for check in found["differences"]} == {
        "setting.tensor_parallel_size",
        "setting.vllm_version",
    }
    assert found["settings"]["tensor_parallel_size"] == 2


def test_a_folder_of_the_hubs_cache_names_the_model(ask: Ask, written: Callable[[list[str]], str]) -> None:
    """``models--ORG--NAME`` is the hub's own way to write ORG/NAME."""
    cached = "/home/user/.cache/huggingface/hub/models--Qwen--Qwen3.5-27B/snapshots/0123abcd"
    code, (found,) = ask("log", written([line.replace("~/qwen3.6-27b-int4", cached) for line in TWO_3090]))
    assert code == 0
    assert found["arithmetic"] is not None


def test_the_profiling_line_of_0_6_4() -> None:
    """Published: 7.92 x 0.9 - 3.12 - 0.47 = 3.538 GiB; PyTorch's peak has the weights in it."""
    lines = [
        "INFO 12-06 11:39:34 model_runner.py:1077] Loading model weights took 2.6419 GB\n",
        "INFO 12-06 11:39:36 worker.py:232] Memory profiling results: total_gpu_memory=7.92GiB "
        "initial_memory_usage=3.09GiB peak_torch_memory=3.12GiB memory_usage_post_profile=3.12GiB "
        "non_torch_memory=0.47GiB kv_cache_size=3.54GiB gpu_memory_utilization=0.90\n",
        "INFO 12-06 11:39:36 gpu_executor.py:113] # GPU blocks: 1207, # CPU blocks: 1365\n",
        "INFO 12-06 11:39:36 gpu_executor.py:117] Maximum concurrency for 2048 tokens per request: 9.43x\n",
    ]
    log = one(lines)
    assert identity(log).holds is True
    assert abs(log.value("available_kv") - 3.54 * GIB) <= 0.005 * GIB
    assert differences(log) == []


def test_a_refusal_of_the_v0_engine() -> None:
    """The pool of one V0 engine holds 18,368 tokens, so a request of as many starts."""
    text = (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
        "in KV cache (18368). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine.\n"
    )
    log = one([text])
    assert verdict(log).kind is RefusalKind.MAX_MODEL_LEN
    assert [found.text for found in suggestions(log, compare(log, None)) if found.sure] == [
        "--max-model-len 18368 or less"
    ]


MAMBA = (
    "(EngineCore pid=80) ERROR 09-03 10:02:41 [core.py:1330] ValueError: max_num_seqs (1024) exceeds available Mamba "
    "cache blocks (614). Each decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. "
    "Please lower max_num_seqs to at most 614 or increase gpu_memory_utilization.\n"
)


def test_more_requests_than_states() -> None:
    """Every running request needs a Mamba cache block: 614 start."""
    log = one([MAMBA])
    assert (verdict(log).status, verdict(log).kind) == (Status.REFUSED, RefusalKind.MAX_NUM_SEQS)
    assert [found.text for found in suggestions(log, compare(log, None)) if found.sure] == [
        "--max-num-seqs 614 or less"
    ]


@pytest.mark.parametrize(
    ("text", "available"),
    [
        # published without the bracket, and cut in the middle of the sentence
        ("80.45 GiB KV cache is needed, which is larger than the available KV cache memory (56.69 GiB).", 56.69),
        ("(80.45 GiB KV cache is needed, which is larger than the available KV cache\n", None),
    ],
)
def test_needed_memory_without_what_stands_before_it(text: str, available: float | None) -> None:
    """The bytes that one request needs are read without the sentence's beginning."""
    log = one([text])
    assert verdict(log).kind is RefusalKind.MAX_MODEL_LEN
    assert abs(log.value("needed_kv") - 80.45 * GIB) <= 0.005 * GIB
    found = log.get("available_kv")
    assert (None if found is None else round(found.number / GIB, 2)) == available


def test_a_negative_pool_is_a_refusal() -> None:
    """Available KV cache memory below 0: vLLM refuses in its next line, which an excerpt may not have."""
    log = one(["INFO [gpu_worker.py:298] Available KV cache memory: -1.44 GiB\n"])
    assert (verdict(log).status, verdict(log).kind) == (Status.REFUSED, RefusalKind.NO_KV_MEMORY)
    assert suggestions(log, compare(log, None)) != []


#: A DGX Spark (the complaint of https://github.com/NVIDIA/NemoClaw/issues/7127): 0.7 x 121.69 = 85.18 GiB were asked.
NEGATIVE = [
    "INFO [gpu_model_runner.py:6042] Estimated CUDA graph memory: -4.74 GiB total\n",
    "INFO [gpu_worker.py:440] Available KV cache memory: 52.66 GiB\n",
    "INFO [gpu_worker.py:700] Free memory on device (110.0/121.69 GiB) on startup. Desired GPU memory utilization is "
    "(0.7, 85.18 GiB). Actual usage is 35.6 GiB for weight, 1.46 GiB for peak activation, 0.2 GiB for non-torch "
    "memory, and 0.60 GiB for CUDAGraph memory.\n",
]


def test_a_negative_estimate_and_a_pool_above_the_share() -> None:
    """35.6 + 1.46 + 0.2 + 0.6 + 52.66 = 90.52 GiB where 85.18 were requested."""
    found = {check.name: check for check in differences(one(NEGATIVE))}
    assert set(found) == {"graph_estimate", "footprint"}
    assert abs(found["footprint"].off - 5.34 * GIB) <= 0.03 * GIB
    # an estimate of 0.60 leaves that pool 5.34 GiB less, and nothing is over
    fine = [line.replace("-4.74", "0.60").replace("52.66", "47.32") for line in NEGATIVE]
    assert differences(one(fine)) == []


@pytest.mark.parametrize("style", ["text", "bytes", "sse", "seq", "pretty"])
def test_the_journal_as_json(style: str) -> None:
    """`journalctl -o json` in its four styles; a message with colours in it is a list of bytes."""
    plain = [line.rstrip("\n") for line in TWO_3090]

    def entry(line: str) -> str:
        message: Any = line
        if style == "bytes":
            message = list(line.replace("(EngineCore pid=92)", "\x1b[0;36m(EngineCore pid=92)\x1b[0m").encode())
        record = {"_SYSTEMD_UNIT": "vllm@0.service", "_PID": "92", "PRIORITY": "6", "MESSAGE": message}
        text = json.dumps(record)
        if style == "pretty":
            return json.dumps(record, indent=4).replace('": ', '" : ') + "\n"
        return {"sse": "data: ", "seq": "\x1e"}.get(style, "") + text + "\n"

    wrapped = one("".join(entry(line) for line in plain).splitlines(keepends=True))
    wanted = one([line + "\n" for line in plain])
    figures = {name: [each.value for each in wanted.all(name)] for name in wanted.figures}
    assert {name: [each.value for each in wrapped.all(name)] for name in wrapped.figures} == figures
    assert wrapped.source == ("" if style == "pretty" else "vllm@0.service")


@pytest.mark.parametrize(
    ("value", "kind", "tokens"),
    [
        ({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}, "no_layers", 5),
        ('{"method": "mtp", "num_speculative_tokens": 1}', "mtp", 1),
        ({"method": "deepseek_mtp"}, "mtp", None),
        ({"model": "org/Some-Eagle3-Head", "num_speculative_tokens": 3}, "model", 3),
        ({"method": "mtp", "model": "x", "num_spec_tokens": 2}, "mtp", 2),
    ],
)
def test_a_speculative_config_is_read(value: object, kind: str, tokens: int | None) -> None:
    """As vLLM takes it, as JSON, and as it prints it."""
    found = speculative.read(value)
    assert found is not None
    assert (found.kind, found.tokens) == (kind, tokens)


@pytest.mark.parametrize("value", ["{", "[]", {}, {"method": "mtp", "num_speculative_tokens": 0}, {"method": ""}])
def test_a_speculative_config_that_is_refused(value: object) -> None:
    """No drafter can be read from it."""
    with pytest.raises(speculative.SpeculativeError):
        speculative.read(value)
