"""A real vLLM on the CPU carves its pool exactly as the arithmetic says: blocks, tokens and concurrency.

Needs a python that has vLLM: --vllm PATH, or MEMBUDGET_VLLM.  The process set forks one
imported vLLM per case (4 to 6 s each); -m "cpu and slow" runs the wider set and two ranks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from membudget import formats
from membudget.cli.main import main as membudget
from membudget.engines.vllm.oracle.asking import ENV, find_python
from membudget.engines.vllm.parallel.ranks import stages
from membudget.engines.vllm.pool.plan import Pool, PoolRequest, plan_pool
from membudget.measure.serve import server_command
from membudget.model import build
from tests_hw.tiny_models import TINY
from tests_hw.vllm_engine import (
    EngineFailed,
    Server,
    cpu_flags,
    end_session,
    free_port,
    left_behind,
    run_forks,
)

pytestmark = pytest.mark.cpu
MIB = 2**20
KV = 256 * MIB

#: Family: every kind of cache once.
FAMILIES = ("llama", "mistral", "qwen3-moe", "gemma3", "gpt-oss", "deepseek-v2", "qwen3-next", "nemotron-h")
WIDER = ("llama-mqa-h80", "gemma2", "gemma3n", "llama4", "jamba", "granite-h", "falcon-h1", "mamba2")
#: Settings on top, one start each: (model, vLLM's engine arguments).
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"num_gpu_blocks_override": 100}),
    ("gemma3", {"max_num_batched_tokens": 512}),
)
WIDER_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"block_size": 64, "max_model_len": 1000}),
    ("llama", {"max_model_len": 8192}),
    ("llama", {"max_model_len": -1}),
    ("llama", {"dtype": "float32"}),
    ("llama", {"enable_prefix_caching": False}),
    ("llama", {"kv_cache_memory_bytes": 64 * MIB}),
    ("gemma3", {"max_model_len": 8192}),
    ("gemma3", {"disable_hybrid_kv_cache_manager": True}),
    ("gpt-oss", {"max_num_batched_tokens": 512}),
    ("qwen3-next", {"enable_prefix_caching": False}),
    ("qwen3-next", {"block_size": 64}),
    ("nemotron-h", {"enable_prefix_caching": False}),
    ("mistral", {"block_size": 32}),
    ("gemma2", {"block_size": 96}),
)
#: Start-ups that vLLM refuses.
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"num_gpu_blocks_override": 1}),
    ("llama", {"num_gpu_blocks_override": 8}),
    ("gemma3", {"kv_cache_memory_bytes": 4 * MIB}),
)
#: Models whose CPU kernels are not all there: they start, and no request is sent.
NO_REQUEST = ("jamba",)


def name_of(model: str, settings: dict[str, Any]) -> str:
    """``gemma3 max_num_batched_tokens=512``."""
    return "-".join([model, *(f"{key}={value}" for key, value in settings.items())])


def parameters() -> list[Any]:
    """All cases; the wider set is slow."""
    out = []
    for models, settings, marks in (
        (FAMILIES, SETTINGS, ()),
        (WIDER, WIDER_SETTINGS, (pytest.mark.slow,)),
    ):
        for model, more in [*((each, {}) for each in models), *settings]:
            out.append(pytest.param(model, more, id=name_of(model, more), marks=marks))
    return out


@pytest.fixture(scope="session")
def vllm_python(request: pytest.FixtureRequest) -> str:
    """The python of the vLLM to start, or a skip that says how to give one."""
    option = request.config.getoption("membudget_vllm", None) or request.config.getoption("--vllm", None)
    python = find_python(option)
    if python is None:
        given = f"{option} is no python with vLLM" if option else f"give --vllm PYTHON or {ENV}"
        pytest.skip(f"no vLLM: {given}")
    return python


@pytest.fixture(scope="session")
def engines(
    request: pytest.FixtureRequest, vllm_python: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """One engine start for every selected case of this module, in forks of one vLLM."""
    cases: dict[str, dict[str, Any]] = {}
    for item in request.session.items:
        call = getattr(item, "callspec", None)
        if item.path != Path(__file__) or call is None or "model" not in call.params:
            continue
        model, more = call.params["model"], call.params["settings"]
        engine = {"max_model_len": 2048, "kv_cache_memory_bytes": KV, **more}
        cases[name_of(model, more)] = {
            "name": name_of(model, more),
            "config": TINY[model],
            "engine": engine,
            "generate": not more and model not in NO_REQUEST,
        }
    return run_forks(vllm_python, list(cases.values()), tmp_path_factory.mktemp("forks"))


def arithmetic(model: str, settings: dict[str, Any], started: dict[str, Any], version: str) -> Pool:
    """The pool by our rules, for the same settings and this CPU."""
    engine = {"max_model_len": 2048, "kv_cache_memory_bytes": KV, **settings}
    flags = cpu_flags()
    tiny = build(TINY[model], model)
    latent = any(cache.kind == "latent" for cache in tiny.caches)
    return plan_pool(
        PoolRequest(
            tiny,
            None,
            engine["max_model_len"],
            started.get("max_num_batched_tokens") or engine.get("max_num_batched_tokens", 4096),
            dtype=engine.get("dtype"),
            block_size=engine.get("block_size"),
            prefix_caching=engine.get("enable_prefix_caching"),
            kv_cache_memory_bytes=engine["kv_cache_memory_bytes"],
            num_gpu_blocks_override=engine.get("num_gpu_blocks_override"),
            hybrid_manager=False if engine.get("disable_hybrid_kv_cache_manager") else None,
            # AMX has an MLA kernel of its own; with AVX-512 BF16 vLLM keeps recurrent states in fp32
            kernel_block=32 if latent and "amx_tile" in flags else None,
            mamba_ssm_cache_dtype="float32" if "avx512_bf16" in flags else "auto",
            version=version,
            platform="cpu",
        )
    )


@pytest.mark.parametrize(("model", "settings"), parameters())
def test_engine_carves_as_predicted(model: str, settings: dict[str, Any], engines: dict[str, dict[str, Any]]) -> None:
    """Block size, blocks, tokens and concurrency of a real engine equal the arithmetic, and it answers a request."""
    started = engines[name_of(model, settings)]
    if "error" in started and model in NO_REQUEST:
        pytest.skip(f"{model} does not start on this CPU: {started['error']}")
    assert "error" not in started, started["error"]
    pool = arithmetic(model, settings, started, engines[""]["version"])
    ours = {
        "block_size": pool.block_size,
        "num_blocks": pool.num_blocks,
        "tokens": pool.tokens,
        "max_concurrency": pool.max_concurrency,
        "max_model_len": pool.request_len,
    }
    if not any(each.kind != "mamba" for each in pool.groups):
        del ours["block_size"]  # no attention: vLLM leaves cache_config.block_size at what it was
    assert {name: started[name] for name in ours} == ours, pool.why
    if "generated" in started:
        assert started["generated"] == 4


@pytest.mark.parametrize(("model", "settings"), [pytest.param(m, s, id=name_of(m, s)) for m, s in REFUSED])
def test_engine_refuses_as_predicted(model: str, settings: dict[str, Any], engines: dict[str, dict[str, Any]]) -> None:
    """A start that the arithmetic refuses is refused by vLLM, in the same words and with the same figures."""
    started = engines[name_of(model, settings)]
    pool = arithmetic(model, settings, started, engines[""]["version"])
    assert not pool.starts
    assert "error" in started
    assert pool.error is not None
    assert pool.error in started["error"]


def printed(model: str) -> list[str]:
    """The flags of the line that `membudget plan --command` prints for a server of 2,048 tokens."""
    asked = ["plan", model, "--machine", "this-machine", "--engine", "vllm", "--ctx", "2048", "--enforce-eager"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert membudget([*asked, "--kv-cache-memory-bytes", str(KV), "--command"]) == 0
    words = shlex.split(out.getvalue())
    assert words[:3] == ["vllm", "serve", model]
    return words[3:]


def serve(python: str, folder: Path, *more: str, environment: dict[str, str] | None = None) -> Server:
    """A server of the tiny llama on a free port."""
    model = folder / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(TINY["llama"]), encoding="utf-8")
    port = free_port()
    arguments = [
        *printed(str(model)),
        *("--served-model-name", "tiny", "--load-format", "dummy", "--skip-tokenizer-init"),
        *("--host", "127.0.0.1", "--port", str(port), *more),
    ]
    if "amx_tile" in cpu_flags():
        # bf16 attention runs on AMX, whose tiles Linux gives to a process that asks; vLLM's workers do not ask
        arguments += ["--dtype", "float16"]
    return Server(server_command(python, str(model), arguments), port, folder, environment)


def check_server(server: Server, tp: int) -> None:
    """Ready, figures at /metrics, one request, clean end, nothing left."""
    server.wait(600)
    found = server.cache_config()
    pool = plan_pool(
        PoolRequest(build(TINY["llama"], "llama"), None, 2048, 2048, tp=tp, kv_cache_memory_bytes=KV, platform="cpu")
    )
    assert pool.num_blocks == KV // pool.bytes_per_block
    assert int(found["num_gpu_blocks"]) == pool.num_blocks
    assert int(found["block_size"]) == pool.block_size
    if "kv_cache_size_tokens" in found:
        assert int(found["kv_cache_size_tokens"]) == pool.tokens
        assert float(found["kv_cache_max_concurrency"]) == pool.max_concurrency
    assert f"{pool.tokens:,} tokens" in server.log.read_text(encoding="utf-8", errors="replace")
    usage = server.complete([1, 2, 3], 4)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)
    session = server.session
    assert server.stop() == 0
    assert left_behind(session) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0


def test_real_server(vllm_python: str, tmp_path: Path) -> None:
    """Started from a plan's own line: /metrics and log agree with the arithmetic, and nothing is left running."""
    with serve(vllm_python, tmp_path) as server:
        check_server(server, 1)


@pytest.mark.slow
def test_real_server_on_two_ranks(vllm_python: str, tmp_path: Path) -> None:
    """Two tensor-parallel ranks hold half the KV heads each: twice the tokens."""
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with serve(vllm_python, tmp_path, "--tensor-parallel-size", "2", environment=environment) as server:
        check_server(server, 2)


def ask_ranks(python: str, folder: Path, engine: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Start one engine over two ranks (vllm_ranks.py); what it says, or None, and its log."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY["llama"]), encoding="utf-8")
    more = {"max_model_len": 2048, "dtype": "float16", "kv_cache_memory_bytes": KV, **engine}
    job, answer, log = folder / "job.json", folder / "answer.json", folder / "ranks.log"
    job.write_text(json.dumps({"model": str(folder), "engine": more}), encoding="utf-8")
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_CACHE_ROOT": str(folder / "cache")}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [python, str(Path(__file__).with_name("vllm_ranks.py")), str(job), str(answer)],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        try:
            process.wait(600)
        finally:
            end_session(process)
    text = log.read_text(encoding="utf-8", errors="replace")
    assert left_behind(process.pid) == []
    return (json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None), text


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_two_real_ranks_hold_what_is_predicted(vllm_python: str, tmp_path: Path, tp: int, pp: int) -> None:
    """Two ranks of a real engine, tensor or pipeline parallel: each one's parameters to the byte, and the pool."""
    engine = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    said, log = ask_ranks(vllm_python, tmp_path / "model", engine)
    assert said is not None, log[-3000:]
    model, form = build(TINY["llama"], "llama"), formats.get("fp16")
    ours = [form.weigh(stage.model).total for stage in stages(model, form, tp, pp) for _ in range(tp)]
    assert said["ranks"] == ours
    pool = plan_pool(
        PoolRequest(model, None, 2048, 4096, dtype="float16", tp=tp, pp=pp, kv_cache_memory_bytes=KV, platform="cpu")
    )
    assert (said["num_blocks"], said["tokens"]) == (pool.num_blocks, pool.tokens)
    assert said["max_concurrency"] == pool.max_concurrency


@pytest.mark.slow
def test_vllms_classes_still_hold_what_the_golden_file_says(vllm_python: str, tmp_path: Path) -> None:
    """Asked again, vLLM's own classes say of their ranks what fixtures/oracle/ranks.json keeps."""
    root, target = Path(__file__).parents[1], tmp_path / "ranks.json"
    names = ["mistralai--Mixtral-8x7B-v0.1", "deepseek-ai--DeepSeek-V2-Lite", "tiny:falcon-h1"]
    script = str(root / "tools/golden_ranks.py")
    done = subprocess.run(
        [vllm_python, script, "--to", str(target), *names], capture_output=True, text=True, timeout=600, check=False
    )
    assert target.exists(), done.stderr[-3000:]
    asked = json.loads(target.read_text(encoding="utf-8"))
    golden = json.loads((root / "fixtures/oracle/ranks.json").read_text(encoding="utf-8"))
    version, kept = (found["source"].partition(",")[0] for found in (asked, golden))
    if version != kept:
        pytest.skip(f"the golden file is of {kept}, this is {version}")
    assert {name: asked["cases"][name] for name in names} == {name: golden["cases"][name] for name in names}


@pytest.mark.slow
def test_ray_does_not_run_on_the_cpu(vllm_python: str, tmp_path: Path) -> None:
    """vLLM's Ray executor refuses the CPU platform; where it starts one day, its ranks must hold what the others do."""
    if subprocess.run([vllm_python, "-c", "import ray"], capture_output=True, check=False).returncode:
        pytest.skip("ray is not installed beside this vLLM")
    engine = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    said, log = ask_ranks(vllm_python, tmp_path / "model", engine)
    if said is None:
        assert "current platform cpu does not support ray" in log, log[-3000:]
    else:
        model, form = build(TINY["llama"], "llama"), formats.get("fp16")
        assert said["ranks"] == [form.weigh(stage.model).total for stage in stages(model, form, 2, 1) for _ in (0, 1)]


@pytest.mark.slow
def test_port_in_use(vllm_python: str, tmp_path: Path) -> None:
    """A server whose port is taken ends with a failure that shows why."""
    with serve(vllm_python, tmp_path) as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", server.port))
        taken.listen()
        with pytest.raises(EngineFailed, match=r"(?i)address already in use"):
            server.wait(300)


def pretend(code: str, folder: Path) -> Server:
    """A server that is a few lines of Python."""
    return Server([sys.executable, "-c", code], free_port(), folder)


def test_crash_at_start_shows_the_log(tmp_path: Path) -> None:
    """A server that ends before it is ready is a failure with its exit code and the end of its log."""
    server = pretend("print('loading'); raise SystemExit('out of luck')", tmp_path)
    with server, pytest.raises(EngineFailed, match=r"(?s)ended with 1.*out of luck"):
        server.wait(30)


def test_hang_ends_with_the_log(tmp_path: Path) -> None:
    """A server that never gets ready is a failure after the limit, and is ended with its children."""
    code = "import subprocess, time; print('loading', flush=True); subprocess.run(['sleep', '600'])"
    with pretend(code, tmp_path) as server:
        with pytest.raises(EngineFailed, match=r"(?s)not ready within 1 s.*loading"):
            server.wait(1)
        session = server.session
        assert left_behind(session)
    assert left_behind(session) == []


def test_killed_engine_names_the_signal(tmp_path: Path) -> None:
    """A server that is killed is a failure that says by which signal."""
    with pretend("import time; time.sleep(600)", tmp_path) as server:
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="killed by signal 9"):
            server.wait(30)


def test_command_of_a_server() -> None:
    """--vllm is a python, a vllm command, or the beginning of a container command."""
    assert server_command("/opt/venv/bin/python", "m", ["--port", "1"])[1:] == [
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "m",
        "--port",
        "1",
    ]
    assert server_command("/usr/bin/vllm", "m", [])[1:] == ["serve", "m"]
    container = "docker run --rm --gpus all vllm/vllm-openai:v0.32.0"
    assert server_command(container, "m", ["--port", "1"])[-4:] == ["--model", "m", "--port", "1"]
