"""The failure message of a budget, word for word, as a person sees it in pytest's output."""

# ruff: noqa: E501  (messages, word for word)
from __future__ import annotations

import shlex

import pytest

from membudget.budgets.file import Sources, parse
from membudget.planning.check import check
from membudget.report.failure import failure

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.math

TOO_MANY = """\
model: meta-llama/Llama-3.1-8B
format: bf16
kv_cache_dtype: bf16
ctx: 8Ki
users: 8
machine: rtx-4090
engine: {arithmetic: {}}
"""

#: 24,564 MiB less 1.5 GiB, 16,060,522,496 bytes of weights, 8 GiB of caches and the peak of a chunk.
DOES_NOT_FIT = """\
does not fit: the KV cache needs 8.00 GiB, 6.62 GiB is left of the 23.99 GiB of rtx-4090: 1.38 GiB over

meta-llama/Llama-3.1-8B · bf16 · 8 users x 8,192 tokens · rtx-4090 (23.99 GiB)

bucket        predicted  expected  off by  allowed
weights      14.958 GiB
kv_cache      8.000 GiB                             <- does not fit
activations   0.910 GiB
overhead      1.500 GiB
total        25.368 GiB
headroom     -1.379 GiB

kv_cache: 8 users x 1,073,741,824 bytes at 8,192 tokens (131,072 bytes x 8,192 tokens)
smallest change: 6,779 tokens of context instead of 8,192
or: 6 users instead of 8
or: an fp8 KV cache
or: fp8 weights

budget   budgets/chat.yaml:1
rerun    pytest 'test_mine.py::test_budget[chat]'"""


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest in here load no plugins but the named ones."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    _message(TOO_MANY)  # pytester forgets what its runs import: import it before


def _message(text: str, since: str = "") -> str:
    text = text if "engine:" in text else text + "engine: {arithmetic: {}}\n"
    budgets, problems = parse(text.encode(), "budgets/chat.yaml", "chat", ".", Sources())
    assert not problems
    return failure(check(budgets[0]), "pytest 'test_mine.py::test_budget[chat]'", since)


def test_a_budget_that_does_not_fit_says_what_breaks_it_and_what_would_help() -> None:
    """Bucket and amount first; then table, reason, changes from the smallest on, file and rerun."""
    assert _message(TOO_MANY) == DOES_NOT_FIT


def test_pytest_shows_the_message_and_nothing_else(pytester: pytest.Pytester) -> None:
    """No traceback, no assertion rewriting, nothing cut: the message is the whole report of the failure."""
    _project(pytester, {"chat": TOO_MANY})
    output = pytester.runpytest("-p", "membudget.pytest_plugin.plugin", "-m", "math", "--disable-warnings").outlines
    start = next(number for number, line in enumerate(output) if line.strip("_ ") == "test_budget[chat]")
    end = next(number for number, line in enumerate(output) if "memory budgets" in line)
    assert "\n".join(output[start + 1 : end]) == DOES_NOT_FIT


def test_the_rerun_command_runs_that_budget_alone(pytester: pytest.Pytester) -> None:
    """What the message says can be pasted: other folders of budgets are in it too, longer names are not run."""
    few = TOO_MANY.replace("users: 8", "users: 2")
    _project(pytester, {"chat": TOO_MANY, "other": few, "group-chat": few}, folder="team")
    first = pytester.runpytest("-p", "membudget.pytest_plugin.plugin", "--budgets=team")
    first.assert_outcomes(failed=1, passed=2)
    (line,) = {line for line in first.outlines if line.startswith("rerun    ")}  # CI has it in the summary too
    assert line == "rerun    pytest --membudget-budgets=team 'test_mine.py::test_budget[chat]'"
    again = pytester.runpytest("-p", "membudget.pytest_plugin.plugin", *shlex.split(line)[2:])
    again.assert_outcomes(failed=1)


def test_a_number_that_differs_says_by_how_much_and_where_it_comes_from() -> None:
    """Predicted, expected, off by, allowed; the formula; the line of the first expectation that is wrong."""
    text = TOO_MANY.replace("users: 8", "users: 6") + (
        "expect:\n  params: 8_030_261_248\n  kv_per_token: 64 KiB\n  weights: within 1% of 15.9 GiB\n  max_users: 7\n"
    )
    assert _message(text, since="transformers 5.23.0 -> 5.24.0 (last passed 2026-11-20)") == (
        """\
kv_per_token is 64.00 KiB over: 128.00 KiB predicted, 64.00 KiB expected (allowed exact) (also: weights, max_users)

meta-llama/Llama-3.1-8B · bf16 · 6 users x 8,192 tokens · rtx-4090 (23.99 GiB)

bucket            predicted       expected      off by  allowed
weights          14.958 GiB     15.900 GiB  -965.1 MiB  within 1%  <- under
kv_cache          6.000 GiB
activations       0.910 GiB
overhead          1.500 GiB
total            23.368 GiB
headroom          0.621 GiB
params        8,030,261,248  8,030,261,248          +0  exact
kv_per_token      131,072 B       65,536 B   +65,536 B  exact      <- over
max_users                 6              7          -1  exact      <- under

kv_per_token: 32 full layers x 8 KV heads x (128 + 128) elements of bf16
weights: 6,979,321,856 layer weights x 16 bits = 13,958,643,712 B; 1,050,939,392 others take 2,101,878,784 B
max_users: 1.00 GiB of cache a user; weights 14.96 GiB + kv_cache 6.00 GiB + activations 932.06 MiB + overhead 1.50 GiB; 23.99 GiB in all

budget   budgets/chat.yaml:10
since    transformers 5.23.0 -> 5.24.0 (last passed 2026-11-20)
rerun    pytest 'test_mine.py::test_budget[chat]'"""
    )


def test_one_byte_is_visible() -> None:
    """A difference that rounding would hide is printed in bytes."""
    text = TOO_MANY.replace("users: 8", "users: 6") + "expect: {weights: 16_060_522_495}\n"
    first = _message(text).splitlines()[0]
    assert first == "weights is 1 B over: 16,060,522,496 B predicted, 16,060,522,495 B expected (allowed exact)"


def test_a_limit_says_below() -> None:
    """`below` has no expected value, only a limit."""
    text = TOO_MANY.replace("users: 8", "users: 6") + "expect: {activations: below 900 MiB}\n"
    lines = _message(text).splitlines()
    assert lines[0] == "activations is 32.06 MiB over: 932.06 MiB predicted, below 900.00 MiB expected"
    assert [line.split() for line in lines if line.startswith("activations  ")] == [
        ["activations", "0.910", "GiB", "+32.1", "MiB", "below", "900", "MiB", "<-", "over"]
    ]


def test_the_limit_itself_is_over() -> None:
    """`below` excludes its bound."""
    text = TOO_MANY.replace("users: 8", "users: 6") + "expect: {activations: below 977_338_368 B}\n"
    assert _message(text).startswith("activations is 0 B over: ")


def test_a_budget_that_must_not_fit_and_does_is_a_failure() -> None:
    """The unexpected pass names what is left, and points at `fits`."""
    lines = _message(TOO_MANY.replace("users: 8", "users: 6") + "expect:\n  fits: false\n").splitlines()
    assert lines[0] == "the budget fits and must not: 635.43 MiB of the 23.99 GiB of rtx-4090 are left"
    assert lines[-2] == "budget   budgets/chat.yaml:9"


def test_weights_that_do_not_fit_are_named_as_such() -> None:
    """No number of users and no context helps: the smaller formats do."""
    text = TOO_MANY.replace("Llama-3.1-8B", "Llama-3.1-70B").replace("8Ki", "1Ki").replace("users: 8", "users: 1")
    message = _message(text)
    assert message.startswith("does not fit: weights need ")
    # 70,553,706,496 parameters less embedding and head of 128,256 x 8,192 each and 161 norms of 8,192
    assert "weights: 68,451,041,280 layer weights x 16 bits" in message


def test_a_breakage_that_is_not_one_is_a_failure() -> None:
    """An outcome that the arithmetic contradicts is found before hardware is touched."""
    text = TOO_MANY.replace("users: 8", "users: 6") + (
        "break: [{logits: every, ctx: 32Ki, expect: {logits: 8_405_385_216}, outcome: out_of_memory}]\nceiling: 40 GiB\n"
    )
    lines = _message(text).splitlines()
    assert lines[0] == "break[0].outcome is fits: out_of_memory expected"
    assert "under a ceiling of 40.00 GiB" in _message(text)
    assert lines[-2] == "budget   budgets/chat.yaml:8"


def test_what_cannot_be_predicted_says_why() -> None:
    """A cache dtype that does not apply to the model is a failure of that budget, with file and rerun."""
    message = _message(TOO_MANY.replace("kv_cache_dtype: bf16", "kv_cache_dtype: fp8_ds_mla"))
    assert message.startswith("cannot be predicted: kv cache dtype fp8_ds_mla is for MLA")
    assert message.endswith("budget   budgets/chat.yaml:1\nrerun    pytest 'test_mine.py::test_budget[chat]'")


def _project(pytester: pytest.Pytester, budgets: dict[str, str], folder: str = "budgets") -> None:
    """A project of somebody's own: budgets, and the suite's test of them."""
    place = pytester.mkdir(folder)
    for name, text in budgets.items():
        (place / f"{name}.yaml").write_text(text, encoding="utf-8")
    pytester.makepyfile(
        test_mine="""
        import pytest
        from membudget.planning.check import check
        from membudget.report.failure import failure

        @pytest.mark.math
        def test_budget(budget, membudget_rerun):
            verdict = check(budget)
            if not verdict.passed:
                pytest.fail(failure(verdict, membudget_rerun), pytrace=False)
        """
    )
