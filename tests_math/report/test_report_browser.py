"""The page of a run in a real browser: light and dark, desk and phone, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from membudget.report import run_page, story
from tests_math.report import browser
from tests_math.report.test_report import RUNS, capacity

pytestmark = [pytest.mark.suite, pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())]


def test_report_reads_well_everywhere(tmp_path: Path) -> None:
    """Contrast at least 4.5 in both schemes, nothing cut off at 390 pixels, nothing refused by the policy."""
    file = tmp_path / "report.html"
    file.write_text(run_page.render(story.of_record(RUNS[-1], RUNS, capacity)), encoding="utf-8")
    for scheme in ("light", "dark"):
        with browser.opened(tmp_path / scheme, prefers_color_scheme=scheme) as driver:
            driver.get(file.as_uri())
            driver.execute_script("for (const more of document.querySelectorAll('details')) more.open = true")
            assert browser.faint(driver) == []
            browser.resize(driver, 390, 844)
            assert driver.execute_script("return document.documentElement.scrollWidth") == 390
            assert browser.complaints(driver) == []
