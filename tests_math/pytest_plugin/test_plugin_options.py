"""The plugin's options and markers, in projects of somebody's own."""

from __future__ import annotations

import sys

import pytest

from tests_math.pytest_plugin.conftest import FITS, Run

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.suite


def test_options_give_way_to_the_projects_own(pytester: pytest.Pytester) -> None:
    """A conftest.py with a --models of its own keeps it; ours is silently absent."""
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--models', default='theirs')")
    pytester.makepyfile("def test_it(request): assert request.config.getoption('--models') == 'mine'")
    result = pytester.runpytest("-p", "membudget.pytest_plugin.plugin", "--models=mine")
    result.assert_outcomes(passed=1)


def test_named_in_a_conftest_the_markers_hold_for_all_tests(pytester: pytest.Pytester) -> None:
    """A suite that loads the plugin itself has slow skipped and hardware checked everywhere."""
    pytester.makeconftest("pytest_plugins = ['membudget.pytest_plugin.plugin']")
    pytester.makepyfile(
        test_x="""
        import pytest

        @pytest.mark.slow
        def test_slow(): pass

        def test_quick(): pass
        """
    )
    result = pytester.runpytest("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * slow: runs with `-m slow`, or when it is named"])
    pytester.runpytest("-m", "slow").assert_outcomes(passed=1, deselected=1)
    pytester.runpytest("test_x.py::test_slow").assert_outcomes(passed=1)
    pytester.runpytest("-m", "not slow").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize("command", ["no-such-vllm", "no-such-tool run image", "'never closed"])
def test_vllm_that_cannot_be_started_is_no_skip(run: Run, command: str) -> None:
    """A command that is not there proves nothing: the run says so before it starts."""
    result = run("--vllm", command)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "there is no such command here; give a python that has vLLM" in result.stderr.str()


def test_vllm_may_be_a_file_a_folder_or_words(run: Run) -> None:
    """A python, its environment's folder, a command with arguments."""
    for command in (sys.executable, sys.prefix, f"{sys.executable} -m vllm"):
        assert run(f"--vllm={command}").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("option", ["--models", "--budgets", "--vllm"])
def test_a_path_behind_a_space_would_move_the_root(pytester: pytest.Pytester, run: Run, option: str) -> None:
    """pytest takes it for a path of tests before it knows our options: the = is asked for; a path within is fine."""
    pytester.makepyfile("def test_it(): pass")
    outside = pytester.path.parent
    result = run(option, str(outside))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"write {option}={outside} with an =" in result.stderr.str()
    (pytester.path / "mine").mkdir()
    (pytester.path / "mine" / "chat.yaml").write_text(FITS, encoding="utf-8")
    run(option, "mine").assert_outcomes(passed=1)
    named = pytester.runpytest_subprocess(
        "-p", "membudget.pytest_plugin.plugin", f"--rootdir={pytester.path}", option, str(outside)
    )
    assert "with an =" not in named.stderr.str()


def test_generic_markers_are_registered_by_choice_alone(pytester: pytest.Pytester, run: Run) -> None:
    """`slow` may be anybody's: the installed plugin registers its own marker only, a conftest.py that names it all."""
    names = ("math", "suite", "transformers", "cpu", "cuda", "spark", "slow")
    output = run("--markers").stdout.str()
    assert "@pytest.mark.membudget: " in output
    assert not any(f"@pytest.mark.{name}: " in output for name in names)
    pytester.makeconftest("pytest_plugins = ['membudget.pytest_plugin.plugin']")
    output = pytester.runpytest("--markers").stdout.str()
    assert all(f"@pytest.mark.{name}: " in output for name in names)
