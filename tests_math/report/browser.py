"""A real browser for pages, without a network; tests skip where none is installed."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def missing() -> str:
    """Why there is no browser here; "" where there is one."""
    if not any(map(shutil.which, PROGRAMS)):
        return "no browser: install chromium"
    if not shutil.which("chromedriver"):
        return "no chromedriver: install chromium-driver"
    return "" if find_spec("selenium") else "no selenium: pip install selenium"


@contextmanager
def opened(profile: Path, width: int = 1240, height: int = 900, **media: str) -> Iterator[Any]:
    """A browser window of that size.  media: ``prefers_color_scheme="dark"`` and the like."""
    if reason := missing():
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = next(found for program in PROGRAMS if (found := shutil.which(program)))
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        resize(driver, width, height)
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int) -> None:
    """The size of the page, a phone's below 500 pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def picture(driver: Any) -> bytes:
    """What the window shows, as PNG."""
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])


def complaints(driver: Any) -> list[str]:
    """What the console said: errors, and whatever the page's policy has refused."""
    return [entry["message"] for entry in driver.get_log("browser")]


def faint(driver: Any, least: float = 4.5) -> list[str]:
    """Texts whose contrast with what lies behind them is below `least` (WCAG 2, relative luminance)."""
    return [f"{text!r}: {ratio:.2f}" for text, ratio in driver.execute_script(_CONTRASTS) if ratio < least]


_CONTRASTS = """
const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const parse = (colour) => colour.match(/[0-9.]+/g).map(Number);
const luminance = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
  if (!text || ["SCRIPT", "NOSCRIPT", "STYLE", "OPTION"].includes(node.tagName) || !node.checkVisibility()) continue;
  const style = getComputedStyle(node);
  const front = parse(node instanceof SVGElement ? style.fill : style.color);
  const [light, dark] = [luminance(front), luminance(behind(node))].sort((a, b) => b - a);
  found.push([text, (light + 0.05) / (dark + 0.05)]);
}
return found;
"""
