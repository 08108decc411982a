"""Take the pictures of docs/images again: `python tools/screenshots.py [RECORD.jsonl]` (extras: docs, browser).

Terminals are real pytest runs, written as SVG whose text a test holds against a new run; the pages are made by
`membudget explore` and `membudget report` of a recorded run, in a headless Chromium.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT))

_BUDGET = """\
model: meta-llama/Llama-3.1-8B
format: bf16
kv_cache_dtype: bf16
ctx: 8Ki
users: {users}
machine: rtx-4090
"""
#: The pictures of a terminal: name, users that one budget has.
RUNS = {"passing": 6, "failing": 8}
_COMMAND = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "math")
#: rich's own, without the web font that it names: nothing is fetched.
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def terminal(users: int, colour: bool = True) -> str:
    """What a pytest run prints, in a project whose budgets are one for so many users and two that fit."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "budgets").mkdir()
        (folder / "tests_math").mkdir()
        for name, count in (("chat", users), ("night-batch", 2)):
            (folder / "budgets" / f"{name}.yaml").write_text(_BUDGET.format(users=count), encoding="utf-8")
        for name in ("conftest.py", "pytest.ini", "tests_math/__init__.py", "tests_math/test_budgets.py"):
            (folder / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "tests_hw").mkdir()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "MEMBUDGET_", "CI", "NO_COLOR"))}
        environment = {**clean, "COLUMNS": "100", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, *_COMMAND, f"--color={'yes' if colour else 'no'}"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.rstrip().splitlines()
    return "\n".join(re.sub(r" in \d+\.\d+s", "", line) for line in lines if not _varies(line))


def _varies(line: str) -> bool:
    """Lines that tell where and on what it ran."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", line)
    return plain.startswith(("platform ", "rootdir: ", "plugins: ", "configfile: ", "cachedir: "))


def as_svg(text: str, title: str) -> str:
    """A picture of a terminal with this ANSI text."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=100, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    console.print(Text("$ pytest -m math", style="bold"))
    console.print(Text.from_ansi(text))
    return console.export_svg(title=title, code_format=_SVG, unique_id=f"membudget-{title}")


def pages(record: Path) -> None:
    """The pages, in light and dark, on a desk and on a phone."""
    from tests_math.report import browser

    def ask(*argv: str) -> None:
        # the rehearsal's budgets name their models from their own folder
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MEMBUDGET_MACHINES": str(ROOT / "tests_hw/machines.yaml"),
        }
        command = [sys.executable, "-m", "membudget", *argv]
        subprocess.run(command, cwd=ROOT / "tests_hw/budgets", env=environment, check=False, stdout=subprocess.DEVNULL)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ask("explore", "meta-llama/Llama-3.1-8B", "-o", str(folder / "explore.html"))
        ask("report", str(record), "-o", str(folder / "report.html"))
        ask("report", str(ROOT / "budgets"), "-o", str(folder / "budgets.html"))
        for page in ("explore", "report", "budgets"):
            for scheme in ("light", "dark"):
                for size, (width, height) in {"desk": (1240, 900), "phone": (390, 844)}.items():
                    name = f"{page}-{scheme}-{size}"
                    with browser.opened(folder / name, width, height, prefers_color_scheme=scheme) as driver:
                        driver.get((folder / f"{page}.html").as_uri())
                        driver.execute_script(_OPEN)
                        (IMAGES / f"{name}.png").write_bytes(small(browser.picture(driver)))


#: A report's pictures are of one budget, opened.
_OPEN = """
const one = [...document.querySelectorAll("details")].find((at) => at.textContent.includes("gemma3-tiny"));
if (one) { one.open = true; one.scrollIntoView(); }
"""


def small(png: bytes) -> bytes:
    """The picture in 255 colours: a third of the bytes."""
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(255).save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    for run, count in RUNS.items():
        (IMAGES / f"{run}.svg").write_text(as_svg(terminal(count), run), encoding="utf-8")
    if len(sys.argv) > 1:
        pages(Path(sys.argv[1]).resolve())
