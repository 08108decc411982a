"""The page in a real browser: sliders and fields moved as a person moves them, compared with `predict` to the byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from membudget import machines
from membudget.report import explore
from tests_math.report import browser
from tests_math.report.explore_plans import START, answer, choices, draw

pytestmark = [
    pytest.mark.suite,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing()),
]

#: Rows of the table by name and the machines' verdicts, as text without separators.
READ = """
const rows = {};
for (const row of document.querySelectorAll("#table tbody tr")) {
  rows[row.dataset.row] = [...row.querySelectorAll("td")].map((cell) =>
    (cell.querySelector("small") || cell).textContent.replace(/[, B]/g, ""));
}
rows.fits = [...document.querySelectorAll(".machine .verdict")]
  .map((verdict) => String(verdict.textContent.startsWith("fits")));
return rows;
"""
#: A long list takes the driver a second to open; choosing from it is tested once, with `add`.
CHOOSE = """
for (const [name, value] of arguments[0]) {
  const list = document.getElementById(name);
  if (list.value === value) continue;
  list.value = value;
  if (list.value !== value) throw new Error(`${name} has no ${value}`);
  list.dispatchEvent(new Event("change"));
}
"""
KNOWN = list(machines.all_machines().values())


@cache
def found() -> Any:
    """The page's models; seconds to make, so not where tests are only collected."""
    return choices()


@cache
def document() -> dict[str, Any]:
    """What the page is made of."""
    return explore.document(found(), KNOWN, START)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as a file."""
    file = tmp_path_factory.mktemp("page") / "explore.html"
    file.write_text(explore.render(found(), KNOWN, START), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator[Any]:
    """A browser with the page in it."""
    with browser.opened(tmp_path_factory.mktemp("profile")) as driver:
        driver.get(address)
        driver.execute_script("for (const more of document.querySelectorAll('details')) more.open = true")
        yield driver


def test_fifty_random_points_are_what_predict_says(window: Any) -> None:
    """Model, format, dtypes, sliders, fields by keyboard; each machine's buckets, most users, whether it fits."""
    rng = random.Random(50)
    for _ in range(50):
        plan = draw(document(), rng)
        _ask(window, plan, rng)
        rows = window.execute_script(READ)
        shown = window.execute_script("return [...document.querySelectorAll('.machine')].map((m) => m.dataset.machine)")
        for column, name in enumerate(shown):
            place = next(index for index, machine in enumerate(KNOWN) if machine.name == name)
            expected = answer(found(), KNOWN, {**plan, "machine": place})
            assert expected == {key: cells[column] for key, cells in rows.items()}, (name, plan)
    assert not browser.complaints(window)


def test_machines_come_and_go(window: Any) -> None:
    """Any machine of the table gets a bar, and its button takes it away again."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(window.find_element(By.ID, "add")).select_by_value("mi300x")
    names = "return [...document.querySelectorAll('.machine')].map((m) => m.dataset.machine)"
    assert window.execute_script(names)[-1] == "mi300x"
    window.find_element(By.CSS_SELECTOR, "[aria-label='Remove mi300x']").click()
    assert "mi300x" not in window.execute_script(names)


def test_wrong_number_changes_nothing_and_is_marked(window: Any) -> None:
    """An impossible context leaves the last answer standing, and says which field is wrong."""
    from selenium.webdriver.common.by import By

    before = window.execute_script(READ)
    _type(window, "ctx", "0")
    assert window.find_element(By.ID, "ctx").get_attribute("aria-invalid") == "true"
    assert before == window.execute_script(READ)
    _type(window, "ctx", "8192")
    assert window.find_element(By.ID, "ctx").get_attribute("aria-invalid") == "false"


def test_address_brings_the_choice_back(window: Any, address: str) -> None:
    """The address keeps the whole choice; a hostile one is ignored."""
    from selenium.webdriver.support.ui import WebDriverWait

    _type(window, "ctx", "12345")
    WebDriverWait(window, 10).until(lambda driver: "ctx=12345" in driver.current_url)
    kept, before = window.current_url, window.execute_script(READ)
    window.get("about:blank")
    window.get(kept)
    assert before == window.execute_script(READ)
    window.get("about:blank")
    window.get(f"{address}#ctx=<script>&users=-1&model=nothing&machines=<b>&format=none")
    assert len(window.execute_script(READ)["fits"]) == 3
    assert not browser.complaints(window)


def test_fits_a_phone(window: Any) -> None:
    """At 390 pixels nothing is cut off sideways."""
    browser.resize(window, 390, 844)
    width = window.execute_script("return document.documentElement.scrollWidth")
    browser.resize(window, 1240, 900)
    assert width == 390


def test_everything_has_a_name(window: Any) -> None:
    """Every control has a label, every picture says what it shows, in the order of the page."""
    unnamed = window.execute_script(
        """return [...document.querySelectorAll("input, select, button, [role=img], summary")].filter((node) =>
          !(node.getAttribute("aria-label") || (node.labels && node.labels.length) || node.textContent.trim()))
          .map((node) => node.outerHTML)"""
    )
    assert unnamed == []
    assert window.execute_script("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length") == 0


def test_text_is_readable_in_light_and_dark(tmp_path: Path, address: str) -> None:
    """Contrast of every text with what is behind it: at least 4.5 to 1."""
    for scheme in ("light", "dark"):
        with browser.opened(tmp_path / scheme, prefers_color_scheme=scheme, prefers_reduced_motion="reduce") as driver:
            driver.get(address)
            driver.execute_script("for (const more of document.querySelectorAll('details')) more.open = true")
            assert browser.faint(driver) == []


def _ask(window: Any, plan: dict[str, Any], rng: random.Random) -> None:
    from selenium.webdriver.common.by import By

    names = ("engine", "format", "kv", "convention", "attention", "logits")
    chosen = [("model", document()["models"][plan["model"]]["name"]), *((name, plan[name]) for name in names)]
    window.execute_script(CHOOSE, chosen)
    for name in ("ctx", "users"):
        if rng.random() < 0.5:
            plan[name] = _slide(window, name, rng)
        else:
            _type(window, name, str(plan[name]))
    if plan["engine"] != "transformers":
        _type(window, "batched", str(plan["batched"]))
    if plan["share"] is not None or window.find_element(By.ID, "share").get_attribute("value"):
        _type(window, "share", "" if plan["share"] is None else repr(plan["share"]))


def _slide(window: Any, name: str, rng: random.Random) -> int:
    """Move the slider by its keys; the field beside it says where it is then."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    slider = window.find_element(By.ID, f"{name}-range")
    slider.send_keys(Keys.HOME + Keys.ARROW_RIGHT * rng.randint(0, 12))
    return int(window.find_element(By.ID, name).get_attribute("value"))


def _type(window: Any, name: str, text: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    field = window.find_element(By.ID, name)
    field.send_keys(Keys.CONTROL + "a" + Keys.NULL + Keys.BACKSPACE + text)
