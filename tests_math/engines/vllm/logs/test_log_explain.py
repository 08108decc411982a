"""What a log means: verdicts, the screen, the JSON, and each printed figure against the arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.logs.checks import bytes_per_token, differences, identity
from membudget.engines.vllm.logs.compare import compare
from membudget.engines.vllm.logs.concurrency import options
from membudget.engines.vllm.logs.document import as_json
from membudget.engines.vllm.logs.explain import NoEngine, explain_file
from membudget.engines.vllm.logs.given import Given
from membudget.engines.vllm.logs.log import parse
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.text import explain
from membudget.engines.vllm.logs.verdict import verdict
from membudget.model import Model

pytestmark = pytest.mark.suite

GIB = 2**30


def short(size: int) -> str:
    """A size as vLLM 0.14 and later print it."""
    return f"{round(size / GIB, 2)}"


def start(
    model: str = "meta-llama/Llama-3.1-8B",
    *,
    version: str = "0.32.0",
    tokens: str = "491,520",
    times: str = "60.00",
    kv: int = 60 * GIB,
    total: int = 85_017_493_504,
    extra: str = "",
    settings: str = "",
) -> list[str]:
    """A start on one 79.18 GiB device at utilization 0.97 whose lines agree with each other.

    60 GiB, 8,192 tokens a request and 8,192 batched tokens give 30,720 blocks, 491,520
    tokens and 60.0x on vLLM 0.32.0, as its own code says for Llama-3.1-8B.
    """
    asked = int(total * 0.97)
    used = asked - kv - GIB
    full = int(0.995 * total) - used - GIB - 600 * 2**20 - 150 * 2**20
    suggested = asked - used - GIB - 600 * 2**20 - 150 * 2**20
    core = "(EngineCore pid=97) INFO 05-04 09:12:13"
    config = (
        f"model='{model}', speculative_config=None, tokenizer='{model}', dtype=torch.bfloat16, max_seq_len=8192, "
        "tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, "
        f"kv_cache_dtype=auto, device_config=cuda, enable_prefix_caching=True, enable_chunked_prefill=True{settings}"
    )
    return [
        f"(APIServer pid=1) INFO 05-04 09:12:11 [api_utils.py:347]   █▄█▀ █     █     █     █  version {version}\n",
        f"(APIServer pid=1) INFO 05-04 09:12:11 [api_utils.py:286] non-default args: {{'model': '{model}', "
        "'max_model_len': 8192, 'gpu_memory_utilization': 0.97, 'max_num_batched_tokens': 8192}\n",
        "(APIServer pid=1) INFO 05-04 09:12:12 [scheduler.py:307] Chunked prefill is enabled with "
        "max_num_batched_tokens=8192.\n",
        f"{core} [core.py:133] Initializing a V1 LLM engine (v{version}) with config: {config}\n",
        f"{core} [gpu_model_runner.py:4000] Model loading took 14.99 GiB memory and 5.100000 seconds\n",
        f"{core} [gpu_worker.py:760] Available KV cache memory: {short(kv)} GiB\n",
        f"{core} [kv_cache_utils.py:2327] GPU KV cache size: {tokens} tokens, Maximum concurrency for 8,192 tokens per "
        f"request: {times}x\n",
        f"{core} [gpu_worker.py:973] CUDA graph pool memory: 0.59 GiB (actual), 0.5 GiB (estimated), difference: 0.09 "
        "GiB (15.2%).\n",
        f"{core} [gpu_worker.py:1013] Free memory on device ({short(int(0.995 * total))}/{short(total)} GiB) "
        f"on startup. Desired GPU memory utilization is (0.97, {short(asked)} GiB). Actual usage is {short(used)} GiB "
        f"for consumed memory (weights + non-torch), 1.0 GiB for peak activation, and {short(600 * 2**20)} GiB for "
        f"CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory={suggested}` "
        f"({short(suggested)} GiB) to fit into requested memory, or `--kv-cache-memory={full}` ({short(full)} GiB) to "
        f"fully utilize gpu memory. Current kv "
        f"cache memory in use is {short(kv)} GiB.\n",
        f"{core} [core.py:402] init engine (profile, create kv cache, warmup model) took 30.70 s\n",
        f"(APIServer pid=1) INFO:     Application startup complete.\n{extra}",
    ]


def one(lines: list[str]) -> EngineLog:
    """The one engine in these lines."""
    found = parse("".join(lines).splitlines(keepends=True))
    assert len(found) == 1
    return found[0]


def written(tmp_path: Path, lines: list[str]) -> str:
    """A log file."""
    path = tmp_path / "server.log"
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


#: vLLM 0.32.0's own code, SM 9.0, 60 GiB, 8,192 tokens a request, 8,192 batched: tokens and concurrency.
OWN = {
    "meta-llama/Llama-3.1-8B": ("491,520", "60.00"),
    "meta-llama/Llama-3.1-70B": ("196,608", "24.00"),
    "Qwen/Qwen2.5-7B": ("1,123,472", "137.14"),
    "google/gemma-2-9b": ("187,057", "22.83"),
    "openai/gpt-oss-20b": ("1,309,441", "159.84"),
    "google/gemma-3-27b-it": ("112,159", "13.69"),
    "google/gemma-3-1b-it": ("2,243,193", "273.83"),
    "mistralai/Mistral-7B-v0.1": ("490,561", "59.88"),
    "zai-org/GLM-4.5-Air": ("341,920", "41.74"),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("327,680", "40.00"),
    "deepseek-ai/DeepSeek-V3.2": ("822,528", "100.41"),
    "Qwen/Qwen3-30B-A3B": ("655,360", "80.00"),
    "deepseek-ai/DeepSeek-V3": ("916,784", "111.91"),
    "deepseek-ai/DeepSeek-V2-Lite": ("2,071,248", "252.84"),
}


@pytest.mark.parametrize("name", OWN)
def test_every_printed_pool_figure_equals_the_arithmetic(name: str, model: Callable[[str], Model]) -> None:
    """A start with the figures of vLLM's own code is found equal, one changed token or hundredth is not."""
    shipped = model(name)
    tokens, times = OWN[name]
    found = compare(one(start(name, tokens=tokens, times=times)), shipped)
    assert {check.name: check.holds for check in found.checks} == {"kv_tokens": True, "max_concurrency": True}
    more = f"{int(tokens.replace(',', '')) * 2:,}"
    wrong = compare(one(start(name, tokens=more, times=times)), shipped)
    assert [check.name for check in wrong.checks if check.holds is False] == ["kv_tokens"]
    assert wrong.checks[0].line == 7


def test_the_screen_of_a_healthy_start(tmp_path: Path) -> None:
    """One screen: who, started, closes, equal, and what would help; exit code 0."""
    found = explain_file(written(tmp_path, start()))
    assert found.good
    text = found.text
    assert text.startswith(
        "vLLM 0.32.0 · meta-llama/Llama-3.1-8B · bfloat16 · KV auto · 8,192 tokens a request\nstarted"
    )
    assert "budget: closes" in text
    assert text.count("equals the arithmetic") == 2
    assert "30,720 blocks of 2,097,152 B / 512 a request = 60.00x" in text
    assert "2.00x  --kv-cache-dtype fp8" in text
    assert "does not agree" not in text
    assert len(text.splitlines()) <= 40


def test_the_json_of_a_healthy_start(tmp_path: Path) -> None:
    """One object an engine; bytes are integers; the keys are those of docs/vllm-logs.md."""
    document = explain_file(written(tmp_path, start())).document
    assert json.loads(json.dumps(document)) == document
    only = document[0]
    assert set(only) == {
        "engine", "source", "data_parallel_rank", "version", "model", "max_model_len", "first_line", "last_line",
        "settings", "figures", "bytes_per_token", "verdict", "refusals", "checks", "differences", "arithmetic",
        "options", "suggestions", "remedies", "note",
    }  # fmt: skip
    assert only["figures"]["available_kv"]["value"] == 60 * GIB
    assert only["figures"]["suggested_kv_full"]["half_width"] == 0
    assert only["verdict"]["status"] == "started"
    assert only["differences"] == []
    documented = (Path(__file__).parents[4] / "docs" / "vllm-logs.md").read_text(encoding="utf-8")
    assert [key for key in only if f"`{key}`" not in documented] == []


def test_a_figure_that_differs_is_exit_code_1(tmp_path: Path) -> None:
    """Half the blocks there should be: both figures are named, with their line."""
    found = explain_file(written(tmp_path, start(tokens="245,760", times="30.00")))
    assert not found.good
    assert "line 7: tokens: arithmetic 491,520; printed 245,760 (-50.0%)" in found.text


def test_no_log_is_exit_code_2(tmp_path: Path) -> None:
    """A file without a start-up says what to give instead."""
    with pytest.raises(NoEngine, match="membudget log -"):
        explain_file(written(tmp_path, ["hello\n", 'INFO:     127.0.0.1 - "GET / HTTP/1.1" 200 OK\n']))


def test_the_lines_that_do_not_agree_are_named() -> None:
    """A suggestion, a requested size and a pool that do not follow from the other lines are each named."""
    lines = start()
    broken = [line.replace("(0.97, ", "(0.85, ") for line in lines]
    assert [check.name for check in differences(one(broken))] == ["requested"]
    assert [check.line for check in differences(one(broken))] == [9]
    smaller = [line.replace("60.0 GiB", "58.0 GiB") for line in lines]
    assert [check.name for check in differences(one(smaller))] == ["identity"]
    tokens = [line.replace("491,520", "391,520") for line in lines]
    assert [check.name for check in differences(one(tokens))] == ["tokens"]


#: What 0.18 and 0.19, and 0.20 and later, say when the environment overrules the version's default.
_ON = (
    "CUDA graph memory profiling is enabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1). This will become the default "
    "in v0.19. The current --gpu-memory-utilization=0.5000 is equivalent to --gpu-memory-utilization=0.4900 without"
)
_OFF = "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without it"


@pytest.mark.parametrize(
    ("version", "says", "available"),
    [("0.19.1", "", "20.0"), ("0.19.1", _ON, "18.0"), ("0.24.0", "", "18.0"), ("0.24.0", _OFF, "20.0")],
    ids=["off before 0.20", "on by the environment", "on since 0.20", "off by the environment"],
)
def test_the_graph_estimate_is_charged_as_the_version_does(version: str, says: str, available: str) -> None:
    """80 x 0.5 - 15 - 4 - 1 = 20 without the 2 GiB of the estimate, 18 with it: only the right one closes."""

    def closes(printed: str) -> bool | None:
        lines = [
            f"INFO 05-04 09:12:11 [a.py:1] vLLM API server version {version}\n",
            "INFO 05-04 09:12:12 [a.py:1] Estimated CUDA graph memory: 2.00 GiB total\n",
            f"INFO 05-04 09:12:12 [a.py:1] Available KV cache memory: {printed} GiB\n",
            f"INFO 05-04 09:12:12 [a.py:1] {says}\n",
            "DEBUG 05-04 09:12:13 [a.py:1] Free memory on device (79.5/80.0 GiB) on startup. Desired GPU memory "
            "utilization is (0.5, 40.0 GiB). Actual usage is 15.0 GiB for weight, 4.0 GiB for peak activation, 1.0 GiB "
            "for non-torch memory, and 1.5 GiB for CUDAGraph memory.\n",
        ]
        return identity(one(lines)).holds

    assert closes(available) is True
    assert closes("18.0" if available == "20.0" else "20.0") is False


def test_out_of_memory_after_the_start() -> None:
    """A server that was up and died later is started, with what came later."""
    late = "(EngineCore pid=97) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 126.00 MiB.\n"
    ended = verdict(one(start(extra=late)))
    assert ended.status == "started"
    assert "out of memory" in ended.later


def test_out_of_memory_after_the_pool_was_taken() -> None:
    """The pool's lines are healthy and the sampler's warm-up fails: refused, and as that (not as any out of memory)."""
    lines = [
        *start()[:7],
        "(EngineCore pid=97) ERROR 05-04 09:12:20 [core.py:843] torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 126.00 MiB. GPU 0 has a total capacity of 23.54 GiB of which 139.75 MiB is free.\n",
        "(EngineCore pid=97) RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.\n",
    ]
    log = one(lines)
    assert verdict(log).kind == "sampler_warmup"
    oom = next(refusal for refusal in log.refusals if refusal.kind == "out_of_memory")
    assert oom.value("oom_wanted") == 126 * 2**20
    assert oom.value("oom_free") == round(139.75 * 2**20)


def test_a_killed_process_is_refused() -> None:
    """The kernel's last word, where unified memory ran out."""
    assert verdict(one([*start()[:5], "Killed\n"])).kind == "killed"


def test_an_exception_that_was_survived_is_no_failure() -> None:
    """A warning's traceback early on does not end a start that goes on."""
    early = "ImportError: no module named deep_gemm\n"
    lines = start()
    assert verdict(one([lines[0], early, *lines[1:6]])).status == "truncated"
    assert verdict(one([*lines[:6], "RuntimeError: NCCL error\n"])).status == "failed"


def test_bytes_per_token_is_an_interval() -> None:
    """available / tokens, with the rounding of the print: 131,072 of Llama-3.1-8B lies within."""
    found = bytes_per_token(one(start()))
    assert found is not None
    assert found[0] <= 131_072 <= found[1]
    assert found[1] - found[0] < 64


@pytest.mark.parametrize(("name", "factor"), [("meta-llama/Llama-3.1-8B", 2.0), ("Qwen/Qwen2.5-7B", 2.0)])
def test_what_raises_concurrency(name: str, factor: float, model: Callable[[str], Model]) -> None:
    """For layers all alike, one byte an element and half the length double it; free memory gives its share."""
    tokens, times = OWN[name]
    log = one(start(name, tokens=tokens, times=times))
    found = {option.text.split(" ")[0]: option.times for option in options(log, compare(log, model(name)))}
    assert found["--kv-cache-dtype"] == pytest.approx(factor, rel=1e-3)
    assert found["--max-model-len"] == pytest.approx(factor, rel=1e-3)
    full = next(times for text, times in found.items() if text.startswith("--kv-cache-memory"))
    assert full == pytest.approx(log.value("suggested_kv_full") / (60 * GIB), rel=1e-3)
    alone = options(log, compare(log, None))
    assert [option.text.split("=")[0] for option in alone] == ["--kv-cache-memory"]


def test_settings_a_log_does_not_print_are_found_and_named(model: Callable[[str], Model]) -> None:
    """Published: Qwen3.6-35B-A3B at 5.98 GiB prints 567,978 tokens; that is prefix caching on, in 0.24.0."""
    lines = [
        "vLLM API server version 0.24.0\n",
        "Available KV cache memory: 5.98 GiB\n",
        "GPU KV cache size: 567,978 tokens\n",
        "Maximum concurrency for 131,072 tokens per request: 4.33x\n",
    ]
    log = one(lines)
    found = compare(log, model("nvidia/Qwen3.6-35B-A3B-NVFP4"), {"kv_cache_dtype": "fp8"})
    assert all(check.holds for check in found.checks)
    assert found.note == "the log does not say it, but the figures are those of prefix caching on"


def test_a_log_without_a_version(model: Callable[[str], Model]) -> None:
    """The versions that print these figures are named; where none does, that is said."""
    gemma = model("google/gemma-4-26B-A4B")
    lines = [
        "Available KV cache memory: 44.03 GiB\n",
        "GPU KV cache size: 192,368 tokens\n",
        "Maximum concurrency for 8,192 tokens per request: 38.76x\n",
    ]
    found = compare(one(lines), gemma, {"max_num_batched_tokens": 4096})
    assert all(check.holds for check in found.checks)
    assert found.note.startswith("the log has no version; the figures are those of vLLM 0.1")
    assert " to 0.20.0" in found.note or found.note.endswith("vLLM 0.20.0")
    wrong = [line.replace("192,368", "999,999") for line in lines]
    nothing = compare(one(wrong), gemma, {"max_num_batched_tokens": 4096})
    assert nothing.checks == ()
    assert "no known one" in nothing.note


def test_an_unknown_model_is_said(tmp_path: Path) -> None:
    """Without the model the log's own relations are still checked."""
    found = explain_file(written(tmp_path, start("nobody/has-this-one")))
    assert found.good
    assert "nobody/has-this-one" in found.text.splitlines()[-1]
    assert "budget: closes" in found.text


def test_a_refusal_is_explained(tmp_path: Path, model: Callable[[str], Model]) -> None:
    """Published: MiniMax-M2.7 on two ranks needs 23.25 GiB and has 22.5; 190,272 tokens would fit."""
    lines = [
        "(APIServer pid=1) INFO 05-04 09:12:11 [a.py:1] vLLM API server version 0.29.0\n",
        "(EngineCore pid=97) INFO 05-04 09:12:12 [gpu_worker.py:1] Available KV cache memory: 22.5 GiB\n",
        "(EngineCore pid=97) ValueError: To serve at least one request with the model's max seq len (196608), (23.25 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (22.5 GiB). Based on the available "
        "memory, the estimated maximum model length is 190272. Try increasing `gpu_memory_utilization`\n",
    ]
    found = explain_file(written(tmp_path, lines), Given(model("MiniMaxAI/MiniMax-M2.7"), known={"tp": 2}))
    assert not found.good
    assert "refused (max_model_len)" in found.text
    assert found.text.count("equals the arithmetic") == 2
    assert [check for check in found.document[0]["checks"] if check["holds"] is False] == []


def test_the_document_of_every_captured_log_is_json() -> None:
    """No captured log has a figure that JSON cannot hold, and each explains in one screen."""
    for path in sorted((Path(__file__).parents[4] / "fixtures" / "logs" / "cpu").glob("*.log")):
        found: Any = explain_file(str(path))
        json.dumps(found.document, allow_nan=False)
        assert len(found.text.splitlines()) <= 40


def test_explain_needs_nothing_but_a_log() -> None:
    """A log of two lines explains, too."""
    log = one(["Available KV cache memory: 5.0 GiB\n"])
    assert "truncated" in explain(log, compare(log, None))[1]
    assert as_json(log)["arithmetic"] is None


def test_a_log_of_another_model_than_the_budgets_is_named(tmp_path: Path, model: Callable[[str], Model]) -> None:
    """A budget of one model beside a log of another: the difference is explained, not only counted."""
    file = tmp_path / "server.log"
    file.write_text("\n".join(start("Qwen/Qwen3-8B")))
    found = explain_file(str(file), Given(model("meta-llama/Llama-3.1-8B")))
    assert not found.good
    (check,) = found.document[0]["differences"]
    assert "of Qwen/Qwen3-8B, another model than meta-llama/Llama-3.1-8B" in check["text"]
    assert "another model" not in explain_file(str(file), Given(model("Qwen/Qwen3-8B"))).text
