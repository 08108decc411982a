"""Budgets with `engine: vllm`, served for real under the guard: `pytest -m spark --vllm CMD`, rehearsed on the CPU.

vLLM is started with the budget's flags; weights, memory for the pool, blocks, tokens and concurrency that its log and
/metrics say are held against the prediction, and it must answer a request and leave nothing running.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, load
from membudget.engines.vllm.oracle.asking import ENV, find_python
from membudget.measure import guard
from membudget.measure.serve import (
    CannotServe,
    Serving,
    compared,
    flags,
    node_flags,
    outlook,
    serve,
    serving,
    version_of,
)
from membudget.measure.status import Status
from membudget.report.failure import subject
from membudget.report.worksheet import failure
from tests_hw.conftest import marked, own_lock, say_dry

HERE = Path(__file__).parent
#: Seconds that two processes of one pytest run wait for each other on the CPU.
WAIT = 900.0


def rehearsal() -> Budget:
    """The budget that is served on the CPU."""
    files = load([HERE / "served"], Sources([str(HERE / "machines.yaml")]), str(HERE.parent))
    problems = [file.error for file in files if file.problems]
    assert not problems, "\n".join(problems)
    return files[0].budgets[0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The rehearsal's budget, and those of the run that name vLLM, each with its machine's marker."""
    if "served" not in metafunc.fixturenames:
        return
    from membudget.pytest_plugin.plugin import _BUDGETS

    given = [item for file in metafunc.config.stash[_BUDGETS].files for item in file.budgets]
    params = []
    for item in [rehearsal(), *(each for each in given if "vllm" in each.engine.name and "engine" in each.where)]:
        params += marked(item)
    metafunc.parametrize("served", params)


def vllm_of(config: pytest.Config) -> str:
    """The command that --vllm or MEMBUDGET_VLLM gives, or a skip that says how to give one."""
    option = config.getoption("membudget_vllm", None) or os.environ.get(ENV)
    if not option and config.getoption("membudget_dry_run", False):
        return "vllm"
    python = find_python(option)
    if python is None and option and " " in option.strip():
        return str(option)  # a command of several words; what is no such words is refused when it is read
    if python is None:
        given = f"{option} is no python with vLLM" if option else f"give --vllm CMD or {ENV}"
        pytest.skip(f"no vLLM: {given}")
    return python


def made_for(config: pytest.Config, budget: Budget, *extra: str) -> Serving:
    """What would be started, or a skip that says why not."""
    vllm = vllm_of(config)
    models = os.path.expanduser(config.getoption("membudget_models", None) or "")
    checkpoint = None
    for name in (budget.model.name, budget.model.name.replace("/", "--"), budget.model.name.rpartition("/")[2]):
        place = os.path.join(models, name) if models else ""
        if place and os.path.isdir(place) and any(entry.endswith(".safetensors") for entry in os.listdir(place)):
            checkpoint = place
    try:
        return serving(budget, vllm, checkpoint=checkpoint, extra=extra, version=version_of(vllm))
    except CannotServe as error:
        pytest.skip(str(error))


def environment_of(budget: Budget) -> dict[str, str]:
    """Two ranks on one CPU need a place each; on a GPU nothing is added."""
    return {"VLLM_CPU_OMP_THREADS_BIND": "auto"} if budget.machine.platform == "cpu" else {}


def kept_log(config: pytest.Config, budget: Budget) -> str | None:
    """Where a server's log is kept: beside the records, with --record."""
    if not config.getoption("membudget_record", False):
        return None
    from membudget.history import here

    folder = here.runs_folder(config.getoption("membudget_runs", None), str(config.rootpath))
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"{budget.id.replace('/', '-')}.vllm.log")


def test_served(served: Budget, request: pytest.FixtureRequest) -> None:
    """A real vLLM with the budget's flags says of its memory what was predicted, answers, and ends."""
    made = made_for(request.config, served)
    if request.config.getoption("membudget_dry_run", False):
        text = f"{served.id}, served: {shlex.join(made.command)}\n  now: {outlook(made)[1]}"
        say_dry(request.config, f"{served.id}, served", text)
        pytest.skip("--dry-run: nothing is started; see the end of the report")
    lock = own_lock() if served.machine.platform == "cpu" else None
    keep = kept_log(request.config, served)
    comparison = serve(made, lock_file=lock, wait=WAIT, environment=environment_of(served), keep=keep)
    from membudget.history.lines import settings
    from membudget.history.recorder import prop, rows_to_lines

    request.node.user_properties.append(prop(served.id, settings(served), rows_to_lines(comparison.rows)))
    if comparison.status == "refused":
        pytest.skip(comparison.why)
    if comparison.status != "done" or comparison.broken:
        from membudget.planning.ledger import predict

        where = f"{served.file}:{served.line}"
        about = subject(predict(served))
        pytest.fail(failure(comparison, comparison.rows, about, where), pytrace=False)
    found = {row.name: row.measured for row in comparison.rows}
    assert found["num_blocks"] is not None or found["pool_tokens"] is not None


@pytest.mark.cpu
@pytest.mark.slow
def test_a_wrong_pool_is_red(request: pytest.FixtureRequest) -> None:
    """A server whose pool is not what the budget says (100 blocks, seeded) breaks blocks, tokens and concurrency."""
    made = made_for(request.config, rehearsal(), "--num-gpu-blocks-override", "100")
    lock = f"/tmp/membudget.rehearsal.{os.getuid()}.{os.getpid()}"
    comparison = serve(made, lock_file=lock, wait=WAIT)
    assert comparison.status == "done", comparison.detail
    assert {row.name for row in comparison.broken} == {"num_blocks", "pool_tokens", "max_concurrency_x100"}
    assert "num_blocks is" in failure(comparison, comparison.rows).splitlines()[0]


@pytest.mark.math
def test_a_server_that_dies_is_red() -> None:
    """A server that ends at once is a crash with its exit code, not a pass without figures."""
    made = replace(serving(rehearsal(), "python"), command=("false",))
    comparison = serve(made, lock_file=f"/tmp/membudget.served.{os.getpid()}", available=lambda: 2**40)
    assert comparison.status == "crashed"
    assert "ended with 1" in comparison.why


@pytest.mark.math
def test_nothing_starts_without_room() -> None:
    """Where the claim and the reserve exceed what is available nothing is started, and both numbers are said."""
    made = replace(serving(rehearsal(), "python"), command=("false",))
    comparison = serve(made, lock_file=f"/tmp/membudget.served.{os.getpid()}", available=lambda: 2**30)
    assert comparison.status == "refused"
    assert "1.00 GiB is available" in comparison.why


@pytest.mark.math
def test_flags_are_vllms_own() -> None:
    """A budget's settings become vLLM's flags; several machines join by its own executor, or by Ray where it runs."""
    budget = rehearsal()
    assert flags(budget) == [
        *("--max-model-len", "2048", "--max-num-batched-tokens", "2048", "--dtype", "float16"),
        *("--kv-cache-dtype", "auto", "--kv-cache-memory-bytes", "268435456", "--enforce-eager"),
    ]
    named = serving(budget, "python").command
    assert named[named.index("--max-num-seqs") + 1] == "256"  # of a step, which the profile run depends on
    two = replace(budget, machines=2, tensor_parallel=2)
    assert flags(two)[-4:] == ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "1"]
    with pytest.raises(CannotServe, match="names 2 machines"):
        node_flags(two, environment={})
    head = {"MEMBUDGET_MASTER_ADDR": "10.0.0.1"}
    assert node_flags(two, environment=head) == ["--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1"]
    assert node_flags(two, 1, head)[-1] == "--headless"
    assert node_flags(two, environment={"RAY_ADDRESS": "auto"}) == ["--distributed-executor-backend", "ray"]
    silent = replace(budget, engine=replace(budget.engine, options={}))
    with pytest.raises(CannotServe, match="gpu_memory_utilization"):
        flags(silent)


@pytest.mark.math
def test_a_log_of_a_wrong_pool_is_red() -> None:
    """The figures are those of /metrics: half the blocks are half the blocks."""
    made = serving(rehearsal(), "python")
    wanted = {row.name: row.predicted for row in made.rows}
    metrics = {"num_gpu_blocks": str(wanted["num_blocks"] // 2), "kv_cache_size_tokens": str(wanted["pool_tokens"])}
    result = {"metrics": metrics, "completion_tokens": 4}
    outcome = guard.Outcome(Status.DONE, "done", result, (), "", None, 1.0, 0)
    comparison = compared(made, outcome, ())
    assert [row.name for row in comparison.broken] == ["num_blocks"]
