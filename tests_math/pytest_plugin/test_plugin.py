"""The pytest plugin, in projects of somebody's own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from membudget.host import available
from tests_math.pytest_plugin.conftest import FITS, Run

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.suite

NEVER = FITS.replace("users: 4", "users: 4_000") + "expect: {fits: false}\n"
BAD = FITS.replace("users: 4", "users: 010")
#: A test that asks for a budget, as a user writes it.
MINE = """
def test_mine(budget):
    assert budget.users
"""


def _budgets(pytester: pytest.Pytester, folder: str = "budgets", **files: str) -> None:
    place = pytester.path / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / f"{name}.yaml").write_text(text, encoding="utf-8")


def test_budget_parametrizes_any_test(pytester: pytest.Pytester, run: Run) -> None:
    """Files beside the tests, in budgets/, without an option: one item for each budget."""
    _budgets(pytester, chat=FITS, batch=FITS.replace("ctx: 8Ki", "ctx: [8Ki, 16Ki]"))
    pytester.makepyfile(MINE)
    result = run("-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random(["*::test_mine[[]chat] PASSED*", "*::test_mine[[]batch-8Ki] PASSED*"])


def test_fixtures_of_any_scope_may_ask_for_a_budget(pytester: pytest.Pytester, run: Run) -> None:
    """A module's fixture that loads something for a budget runs once for each."""
    _budgets(pytester, chat=FITS, batch=FITS)
    pytester.makepyfile(
        """
        import pytest

        loads = []

        @pytest.fixture(scope="module")
        def loaded(budget):
            loads.append(budget.id)
            return budget.id

        def test_one(loaded): pass
        def test_two(loaded): assert sorted(loads) == sorted(set(loads))
        """
    )
    run().assert_outcomes(passed=4)


def test_k_selects_by_id(pytester: pytest.Pytester, run: Run) -> None:
    """The ids work with -k as they are, dots and dashes and all."""
    _budgets(pytester, **{"llama-3.2-1b-bf16.rtx-4090": FITS, "other.l4": FITS})
    pytester.makepyfile(MINE)
    run("-k", "llama-3.2-1b-bf16.rtx-4090").assert_outcomes(passed=1, deselected=1)


def test_budgets_option_replaces_the_default(pytester: pytest.Pytester, run: Run) -> None:
    """--budgets may be given several times, for folders and for files."""
    _budgets(pytester, default=FITS)
    _budgets(pytester, "a", one=FITS, two=FITS)
    _budgets(pytester, "b", three=FITS, four=FITS)
    pytester.makepyfile(MINE)
    result = run("--budgets=a", "--budgets=b/three.yaml", "-v")
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line("*[[]default]*")


@pytest.mark.parametrize("option", ["budgets", "machines", "models"])
def test_a_path_that_is_not_there_is_a_usage_error(pytester: pytest.Pytester, run: Run, option: str) -> None:
    """A mistyped path stops the run with its name, before anything passes."""
    pytester.makepyfile(MINE)
    for lead in ("--membudget-", "--"):
        result = run(f"{lead}{option}=nowhere")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --membudget-{option} nowhere: no such file or folder"])


def test_a_folder_without_budgets_is_a_usage_error(pytester: pytest.Pytester, run: Run) -> None:
    """An empty folder is not a suite that passes."""
    (pytester.path / "empty").mkdir()
    pytester.makepyfile(MINE)
    result = run("--budgets=empty")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --membudget-budgets *empty: no budget in it; a budget is a .yaml file*"])


def test_without_budgets_nothing_is_green(pytester: pytest.Pytester, run: Run) -> None:
    """Neither budgets/ nor --budgets, as where a folder was moved: red, with what to do."""
    pytester.makepyfile(MINE)
    result = run()
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*no budgets: no .yaml file in */budgets, so nothing was checked; pass --membudget-budgets=PATH*"]
    )


def test_a_bad_file_fails_once_and_leaves_the_others(pytester: pytest.Pytester, run: Run) -> None:
    """An item named after the file fails with its errors, no traceback; other budgets run, and it is said once."""
    _budgets(pytester, bad=BAD, good=FITS)
    pytester.makepyfile(MINE + "\n\ndef test_other(budget): pass\n")
    result = run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_mine[[]bad]*",
            "budgets/bad.yaml:5: users: 010 is octal to some YAML readers: write 10 without the leading 0",
            "*memory budgets*",
            "bad *FAILED: budgets/bad.yaml:5: users: 010 is octal*",
            "FAILED *test_mine[[]bad]*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_what_is_no_file_fails_as_a_test_of_its_name(pytester: pytest.Pytester, run: Run) -> None:
    """A dangling link and a folder named like a budget fail alone; an option may also name the folder."""
    _budgets(pytester, good=FITS)
    (pytester.path / "budgets" / "link.yaml").symlink_to("nowhere.yaml")
    (pytester.path / "budgets" / "folder.yaml").mkdir()
    pytester.makepyfile(MINE)
    for options in ((), ("--budgets=budgets",)):
        result = run(*options)
        result.assert_outcomes(passed=1, failed=2)
        result.stdout.fnmatch_lines(["*test_mine[[]folder]*", "budgets/folder.yaml: cannot be read: it is a folder"])
        result.stdout.fnmatch_lines(["budgets/link.yaml: cannot be read: No such file or directory"])


def test_k_selects_names_of_any_script(pytester: pytest.Pytester, run: Run) -> None:
    """pytest escapes such letters in its own names; -k finds the budget as it is called."""
    _budgets(pytester, чат=FITS, другой=FITS, плохой=BAD)
    pytester.makepyfile(MINE)
    run("-k", "чат").assert_outcomes(passed=1, deselected=2)
    run("-k", "плохой").assert_outcomes(failed=1, deselected=2)


def test_a_project_without_tests_of_its_own_has_the_shipped_one(pytester: pytest.Pytester, run: Run) -> None:
    """Nothing but budgets/ is needed; a failure's rerun command runs that budget by the shipped test."""
    _budgets(pytester, chat=FITS, crowd=NEVER.replace("false", "true"))
    result = run("--pyargs", "membudget.tests", "-m", "math")
    result.assert_outcomes(passed=1, failed=1)
    (line,) = {line for line in result.outlines if line.startswith("rerun    ")}  # CI has it in the summary too
    assert line == "rerun    pytest --pyargs 'membudget.tests.test_budgets::test_budget[crowd]'"
    run(*shlex.split(line)[2:]).assert_outcomes(failed=1)


def test_a_bad_file_can_be_selected_and_survives_deselection(pytester: pytest.Pytester, run: Run) -> None:
    """By -k, by node id and under -m it is still there, and only once."""
    _budgets(pytester, bad=BAD, good=FITS)
    pytester.makepyfile(
        test_x="""
        import pytest
        @pytest.mark.math
        def test_mine(budget): pass
        @pytest.mark.spark
        def test_hardware(budget): pass
        """
    )
    run("-k", "bad").assert_outcomes(failed=1, deselected=2)
    run("test_x.py::test_mine[bad]").assert_outcomes(failed=1)
    run("-m", "spark").assert_outcomes(failed=1, skipped=1, deselected=2)
    run("-m", "spark", "-k", "good").assert_outcomes(skipped=1, deselected=3)


def test_summary_shows_total_headroom_and_verdict(pytester: pytest.Pytester, run: Run) -> None:
    """One row a budget; a budget that must not fit says that this was expected; -q is silent."""
    _budgets(pytester, chat=FITS, crowd=NEVER)
    pytester.makepyfile(MINE + "\n\ndef test_again(budget): pass\n")
    result = run()
    # 2,471,628,800 bytes of weights, 4 x 8,192 x 32 KiB, the peak of a chunk and 1.5 GiB, of 24,564 MiB
    result.stdout.fnmatch_lines(
        [
            "*= memory budgets =*",
            "chat * 5.304 GiB * 18.684 GiB  fits",
            "crowd * GiB * -*GiB  does not fit, as expected",
        ]
    )
    run("-q").stdout.no_fnmatch_line("*memory budgets*")


def test_verbose_shows_the_figures_beside_each_test(pytester: pytest.Pytester, run: Run) -> None:
    """-v: total, verdict and what is left, behind PASSED and FAILED."""
    _budgets(pytester, chat=FITS, crowd=NEVER)
    pytester.makepyfile("def test_mine(budget): assert budget.users < 100")
    run("-v").stdout.fnmatch_lines_random(
        ["*[[]chat] PASSED (5.30 GiB, fits, 18.68 GiB left)*", "*[[]crowd] FAILED (*GiB, does not fit, * GiB over)*"]
    )


def test_colours_only_on_a_terminal(pytester: pytest.Pytester, run: Run) -> None:
    """A pipe gets no escape codes; --color=yes does."""
    _budgets(pytester, chat=FITS)
    pytester.makepyfile(MINE)
    assert "\x1b[" not in run("-v").stdout.str()
    assert "\x1b[32mfits" in run("-v", "--color=yes").stdout.str()


def test_xdist_workers_report_to_one_summary(pytester: pytest.Pytester) -> None:
    """The figures travel with the reports; ids are the same in every process."""
    pytest.importorskip("xdist", reason="needs pytest-xdist: pip install 'membudget[test]'")
    _budgets(pytester, chat=FITS, crowd=NEVER, bad=BAD)
    pytester.makepyfile(MINE)
    result = pytester.runpytest_subprocess("-p", "membudget.pytest_plugin.plugin", "-p", "xdist", "-n", "2")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["bad * FAILED: budgets/bad.yaml:5*", "chat *fits", "crowd *does not fit, as expected"])


def test_junit_xml_carries_the_figures(pytester: pytest.Pytester, run: Run) -> None:
    """The figures are ordinary user properties."""
    _budgets(pytester, chat=FITS)
    pytester.makepyfile(MINE)
    run("--junitxml=out.xml").assert_outcomes(passed=1)
    found = (pytester.path / "out.xml").read_text(encoding="utf-8")
    assert '<property name="membudget_weights" value="2471628800"' in found
    assert '<property name="membudget_fits" value="True"' in found


def test_somebody_elses_budget_is_left_alone(pytester: pytest.Pytester, run: Run) -> None:
    """A project with a fixture or a parameter called budget, and slow tests of its own, runs as without the plugin."""
    _budgets(pytester, chat=FITS)
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def budget(): return 5

        def test_fixture(budget): assert budget == 5

        @pytest.mark.parametrize("budget", [1, 2])
        def test_parameter(budget): assert budget in (1, 2)

        @pytest.mark.slow
        def test_slow(): pass

        @pytest.mark.spark
        def test_sparkling(): pass
        """
    )
    result = run()
    result.assert_outcomes(passed=5)
    result.stdout.no_fnmatch_line("*memory budgets*")


def test_plain_pytest_collects_the_budgets_of_the_ini_file(pytester: pytest.Pytester, run: Run) -> None:
    """An item for each budget and each bad file, whatever testpaths says; without the option YAML is no test."""
    _budgets(pytester, chat=FITS, crowd=NEVER.replace("false", "true"), bad=BAD, two=FITS.replace("8Ki", "[8Ki, 16Ki]"))
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "test_x.py").write_text("def test_x(): pass")
    run().assert_outcomes(passed=1)
    pytester.makeini("[pytest]\nmembudget_budgets = budgets\ntestpaths = tests\naddopts = --strict-markers")
    result = run()
    result.assert_outcomes(passed=4, failed=2)
    run("-m", "membudget", "-k", "two").assert_outcomes(passed=2, deselected=4)
    (line,) = {line for line in result.outlines if line.startswith("rerun    ")}
    assert line == "rerun    pytest budgets/crowd.yaml::crowd"
    run(*shlex.split(line)[2:]).assert_outcomes(failed=1)


def test_a_failure_is_annotated_and_its_table_printed_once(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GitHub: an error at the budget's line; pytest's short summary keeps to the first line where CI is set."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _budgets(pytester, crowd=NEVER.replace("false", "true"), bad=BAD, chat=FITS)
    pytester.makepyfile(
        MINE.replace("assert budget.users", "import pytest; pytest.fail('short\\n\\nlong', pytrace=False)")
    )
    lines = run().outlines
    assert sum(line == "long" for line in lines) == 2  # crowd and chat, each in its own report alone
    found = [line for line in lines if line.startswith("::error ")]
    assert "::error file=budgets/crowd.yaml,line=1,title=budget crowd::short" in found
    assert any(line.startswith("::error file=budgets/bad.yaml,line=5,title=budget bad::") for line in found)
    assert len(found) == 3


def test_on_another_machine_spark_tests_are_skipped_with_the_reason(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-m spark` without a Spark: everything skipped, nothing failed, one reason."""
    monkeypatch.setattr(available, "gpus", lambda: ())
    _budgets(pytester, chat=FITS)
    pytester.makepyfile("import pytest\n@pytest.mark.spark\ndef test_mine(budget): raise AssertionError")
    result = run("-m", "spark", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs a DGX Spark (an NVIDIA GPU named GB10); *"])


def test_on_a_spark_only_its_own_budgets_run(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of another machine is skipped there, by name."""
    monkeypatch.setattr(available, "missing", lambda marker: None)
    _budgets(
        pytester,
        desk=FITS.replace("rtx-4090", "dgx-spark"),
        here=FITS.replace("rtx-4090", "this-machine"),
        card=FITS,
    )
    pytester.makepyfile("import pytest\n@pytest.mark.spark\ndef test_mine(budget): assert budget.id != 'card'")
    result = run("-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * this budget is for rtx-4090, and this machine is a DGX Spark"])


def test_the_plugin_is_light() -> None:
    """Every pytest run of the environment loads it: no large library comes with it."""
    code = (
        "import sys, pytest; before = set(sys.modules); import membudget.pytest_plugin.plugin;"
        "print(sorted(set(sys.modules) & {'torch', 'transformers', 'numpy', 'yaml', 'huggingface_hub'} - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_unused_it_reads_nothing(pytester: pytest.Pytester, run: Run) -> None:
    """A project that never asks for a budget is not bothered by a broken budgets/ folder, nor by any output."""
    _budgets(pytester, bad=BAD)
    pytester.makepyfile("def test_it(): pass")
    result = run()
    result.assert_outcomes(passed=1)
    assert "memory budgets" not in result.stdout.str()
    assert "bad.yaml" not in result.stdout.str()


def test_custom_code_is_said_below_the_table(pytester: pytest.Pytester, run: Run) -> None:
    """Once a model, however many of its budgets run."""
    model = Path(__file__).parents[2] / "fixtures" / "hostile" / "santacoder.config.json"
    text = FITS.replace("meta-llama/Llama-3.2-1B", str(model)).replace("8Ki", "[1024, 2048]")
    _budgets(pytester, santacoder=text.replace("bf16", "fp32"))
    pytester.makepyfile(MINE)
    out = run().stdout
    out.fnmatch_lines(["*memory budgets*", "*custom code: the repository has a class of its own*"])
    assert out.str().count("custom code") == 1
