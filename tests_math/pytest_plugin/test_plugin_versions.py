"""`--membudget-vllm-version`: each budget of vLLM under the rules of several versions."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.suite

BUDGET = """\
model: Qwen/Qwen3-8B
format: bf16
kv_cache_dtype: bf16
ctx: 8k
users: 8
machine: {machine}
engine: {engine}
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a budget of vLLM, one that names its version, and one of transformers."""
    pytester.makeconftest('pytest_plugins = ["membudget.pytest_plugin.plugin"]')
    folder = pytester.mkdir("budgets")
    engines = {"served": "{vllm: {}}", "old": "{vllm: {version: '0.24.0'}}", "plain": "{transformers: {}}"}
    for name, engine in engines.items():
        (folder / f"{name}.yaml").write_text(BUDGET.format(machine="h100-80gb", engine=engine))
    pytester.makepyfile("from membudget.tests.test_budgets import test_budget")
    return pytester


def test_a_budget_stands_once_for_each_version(project: pytest.Pytester) -> None:
    """Two ids for the budget without a version; the others keep theirs."""
    result = project.runpytest("--membudget-vllm-version", "0.27.1,0.32.0", "--collect-only", "-q")
    assert sorted(line.partition("[")[2].rstrip("]") for line in result.outlines if "::" in line) == [
        "old",
        "plain",
        "served-vllm-0.27.1",
        "served-vllm-0.32.0",
    ]
    assert project.runpytest("--vllm-version", "0.27.1,0.32.0").ret == 0


def test_a_verdict_by_version(project: pytest.Pytester) -> None:
    """48 users of 8,192 tokens at the default share, which is 0.9 of the device before 0.20 and 0.92 from then on."""
    path = project.path / "budgets" / "served.yaml"
    path.write_text(path.read_text().replace("users: 8", "users: 48"))
    result = project.runpytest("--membudget-vllm-version", "0.19.0,0.32.0", "-k", "served")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*served-vllm-0.19.0*"])


def test_a_version_that_is_not_known(project: pytest.Pytester) -> None:
    """The message names the option and what is known."""
    result = project.runpytest("--membudget-vllm-version", "0.27.1,banana")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--membudget-vllm-version: *banana*"])
