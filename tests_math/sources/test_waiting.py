"""Our own bound on waiting for the hub: returned, raised, or given up in time."""

from __future__ import annotations

import time

import pytest

from membudget.sources.waiting import HubTooSlow, bounded

pytestmark = pytest.mark.suite


def test_an_answer_and_an_error_come_through() -> None:
    """What the call returns, and what it raises."""
    assert bounded(lambda: 7, "x", 5) == 7
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, "x", 5)


def test_a_server_that_asks_to_wait_is_not_waited_for() -> None:
    """A Retry-After of 1,000 s ends with our bound, as something that is not available here."""
    before = time.monotonic()
    with pytest.raises(HubTooSlow) as caught:
        bounded(lambda: time.sleep(1000), "x", 0.3)
    assert time.monotonic() - before < 5
    assert (caught.value.exit_code, caught.value.code) == (3, "hub_too_slow")
