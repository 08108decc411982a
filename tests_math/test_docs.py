"""What README.md and docs/ show is what happens: commands run, YAML loads, links lead somewhere, tables are computed.

A `console` block is a session in a copy of this project without budgets: lines behind `$ ` are run, one page one
folder, and their output is compared, a line `...` standing for any lines.  `<!-- file: NAME -->` before a block writes
it there first; `<!-- not run: WHY -->` leaves a session out.  In `sh` blocks every membudget command must parse.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from membudget.cli.commands.registry import COMMANDS, parser_of

pytestmark = pytest.mark.suite
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^([ ]*)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_COUNT = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|((?: [\d,]+ \|){4})$", re.MULTILINE)
_FORMAT = re.compile(r"^\| `(\w+)` \| [\d.]+ \| ([\d,]+) \| ([\d.]+) \|$", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block: its language, text without indentation, and the comment in front of it."""

    language: str
    text: str
    note: str


@cache
def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent, language, body = match.groups()
        before = text[: match.start()].rstrip().rsplit("\n", 1)[-1].strip()
        note = before[4:-3].strip() if before.startswith("<!--") and before.endswith("-->") else ""
        body = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        found.append(Block(language, body, note))
    return found


def sessions(text: str) -> list[tuple[str, list[str]]]:
    """Commands of a console block with the lines shown below each."""
    found: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line.rstrip())
    return found


def pages(*languages: str) -> list[Any]:
    """The pages that have such blocks."""
    return [pytest.param(page, id=page.stem) for page in PAGES if {b.language for b in blocks(page)} & {*languages}]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone without budgets."""
    (tmp_path / "tests_math").mkdir()
    for name in ("conftest.py", "pytest.ini", "tests_math/__init__.py", "tests_math/test_budgets.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests_hw").mkdir()
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures", target_is_directory=True)
    bin_ = tmp_path / ".bin"
    bin_.mkdir()
    for name, module in (("membudget", "membudget"), ("pytest", "pytest -p no:cacheprovider")):
        script = bin_ / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return tmp_path


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize("page", pages("console"))
def test_sessions_print_what_is_shown(page: Path, project: Path) -> None:
    """Every command of the page's console blocks prints what stands below it."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MEMBUDGET_", "CI"))},
        "PATH": f"{project / '.bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(project / "hub"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    for block in blocks(page):
        if block.note.startswith("file: "):
            target = project / block.note.removeprefix("file: ")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        if block.language != "console" or block.note.startswith("not run: "):
            continue
        for command, shown in sessions(block.text):
            done = subprocess.run(
                ["bash", "-c", command], cwd=project, env=environment, capture_output=True, text=True, timeout=120
            )
            printed = done.stdout + done.stderr
            assert matches(shown, printed.splitlines()), f"{page.name}: $ {command}\nprints\n{printed}"


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines are those; `...` stands for any lines, or for the rest of one line."""

    def parts(line: str) -> str:
        return ".*".join(map(re.escape, line.split("..."))) if line.endswith("...") else re.escape(line)

    pattern = "".join(r"(?:[^\n]*\n)*" if line == "..." else parts(line) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed)) is not None


@pytest.mark.parametrize("page", pages("sh", "console"))
def test_commands_parse(page: Path) -> None:
    """Every membudget command that is shown exists and has those options."""
    for block in blocks(page):
        if block.language == "console" and not block.note.startswith("not run: "):
            continue  # these are run
        lines = [command for command, _ in sessions(block.text)] if block.language == "console" else []
        if block.language == "sh":
            lines = [line.strip() for line in block.text.replace("\\\n", " ").splitlines()]
        for line in lines:
            for part in re.split(r"\||&&|;|>", line):
                words = shlex.split(part, comments=True)
                if words[:1] == ["membudget"]:
                    names = [name for name, *_ in COMMANDS]
                    assert words[1] in names, f"{page.name}: {line}: no command {words[1]}"
                    known = {option for action in parser_of(words[1])._actions for option in action.option_strings}
                    used = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
                    assert used <= known, f"{page.name}: {line}: no option {sorted(used - known)}"


@pytest.mark.parametrize("page", pages("yaml"))
def test_yaml_loads(page: Path, tmp_path: Path) -> None:
    """Budgets and tables of machines load without a word; other YAML is YAML."""
    import yaml

    from membudget.budgets.file import Sources, parse
    from membudget.machines import file as machine_file

    for block in blocks(page):
        if block.language != "yaml":
            continue
        content = yaml.safe_load(block.text)
        if isinstance(content, list):  # a step of a workflow
            continue
        if {"model", "ctx", "users", "machine"} <= {*content}:  # an excerpt is none
            budgets, problems = parse(block.text.encode(), page.name, page.stem, str(ROOT), Sources())
            assert budgets, problems
            assert not problems
        elif all(isinstance(value, dict) and "memory" in value for value in content.values()):
            file = tmp_path / "machines.yaml"
            file.write_text(block.text, encoding="utf-8")
            assert {*content} == {machine.name for machine in machine_file.read(file)}


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that code hosts and the site make of a page's headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    made: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        made.add(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-"))
    return frozenset(made)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file of this project, every anchor a heading of it."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in (one or two for one, two in _LINK.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}: no such file"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}: no such heading"


def test_every_page_is_in_the_navigation() -> None:
    """No page of docs/ that the site does not list, none listed that is not there."""
    listed = set(re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {page.name for page in PAGES if page.parent.name == "docs"} == listed


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """`mkdocs build --strict`; skipped where the docs extra is not installed."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_tables_of_the_concepts_are_computed(plan: Any) -> None:
    """Bytes in docs/concepts.md are those of `membudget plan`."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    rows = _COUNT.findall(text)
    assert len(rows) >= 6
    for name, _, cells in rows:
        shown = [int(cell.replace(",", "")) for cell in re.findall(r"[\d,]+", cells)]
        short, long = plan(name, "--ctx", "8192"), plan(name, "--ctx", "131072")
        keys = (long["kv_per_token"], long["kv_per_token_at_ctx"], short["kv_per_request"], long["kv_per_request"])
        assert tuple(shown) == keys, name
    formats = _FORMAT.findall(text)
    assert len(formats) >= 5
    for name, size, bits in formats:
        found = plan("meta-llama/Llama-3.1-8B", "--format", name)
        assert int(size.replace(",", "")) == found["weights"], name
        assert float(bits) == pytest.approx(found["weights"] * 8 / found["params"], abs=0.005), name


@pytest.fixture
def plan(ask: Any) -> Any:
    """The JSON of a plan on one machine."""
    return lambda *argv: ask("plan", *argv, "--machine", "b200", "--engine", "arithmetic")[1]


@pytest.mark.skipif(os.name == "nt", reason="pytest prints other paths")
@pytest.mark.parametrize("name", ["passing", "failing"])
def test_pictures_of_terminals_are_what_pytest_prints(name: str) -> None:
    """Every line of a new run is in the picture: `python tools/screenshots.py` was run after the last change."""
    import html
    import runpy

    made = runpy.run_path(str(ROOT / "tools" / "screenshots.py"))
    svg = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    shown = _words("".join(map(html.unescape, re.findall(r"<text[^>]*>([^<]*)</text>", svg))))
    for line in made["terminal"](made["RUNS"][name], colour=False).splitlines():
        assert _words(line.removesuffix("...")) in shown, line  # pytest cuts lines that are not coloured


def _words(text: str) -> str:
    """Without spaces, and without rules whose length depends on what they frame."""
    return re.sub(r"[\s=_]+", "", text)
