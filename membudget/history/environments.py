"""An environment a version of an engine: made once, kept, and never half-made.

With a base every environment is a thin layer over it: torch and the rest are the base's,
and only what the asked version needs differently is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from membudget.errors import MembudgetError
from membudget.history.store import lock_of

#: Written last: an environment without it was cut off and is made anew.
READY = "membudget-ready.json"
#: Seconds that one installation may take.
TIMEOUT = 3600
_VERSION = re.compile(r"[0-9A-Za-z.!+]+")

Run = Callable[[Sequence[str]], "Said"]


class Said(NamedTuple):
    """A command's exit code and what it printed."""

    code: int
    text: str


class EnvironmentFailed(MembudgetError):
    """An environment that could not be made: which command, and the end of what it said."""


class Environment(NamedTuple):
    """Where it is, its interpreter, and what it was made for."""

    folder: str
    python: str
    package: str
    version: str


def run_command(command: Sequence[str]) -> Said:
    """Run it; stdout and stderr together."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Said(124, f"not done within {TIMEOUT} s")
    except OSError as error:
        return Said(127, f"cannot be started: {error.strerror}")
    return Said(done.returncode, done.stdout)


def cache_folder(given: str | None = None) -> str:
    """Where environments are kept: as given, else in the user's cache."""
    if given:
        return os.path.abspath(given)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "membudget", "environments")


def ensure(
    package: str,
    version: str,
    folder: str,
    *,
    base: str | None = None,
    more: Sequence[str] = (),
    dependencies: bool = True,
    index: str = "",
    run: Run = run_command,
) -> Environment:
    """The environment of `package` at `version`, made where it is not there yet.

    base: a python whose packages lie under it.  more: further requirements (``torch==2.13.0``).
    dependencies: False takes all that the package needs from the base as it is there.  index: where its wheels
    are looked for first, "" for pip's own.
    Raises `EnvironmentFailed`; what is left of a failed one is made anew the next time.
    """
    if not _VERSION.fullmatch(version):
        raise EnvironmentFailed(f"{package} {version!r} is not a version")
    key = json.dumps([package, version, base or "", sorted(more), dependencies, sys.version_info[:2]])
    place = os.path.join(folder, f"{package}-{version}-{hashlib.sha256(key.encode()).hexdigest()[:8]}")
    python = os.path.join(place, "Scripts" if os.name == "nt" else "bin", "python.exe" if os.name == "nt" else "python")
    made = Environment(place, python, package, version)
    if os.path.exists(os.path.join(place, READY)):
        return made
    os.makedirs(folder, exist_ok=True)
    with lock_of(place):
        if not os.path.exists(os.path.join(place, READY)):  # another process may have made it meanwhile
            _make(run, place, made, base, more, dependencies, index)
    return made


def _make(
    run: Run, place: str, made: Environment, base: str | None, more: Sequence[str], dependencies: bool, index: str
) -> None:
    _must(run, [base or sys.executable, "-m", "venv", "--clear", place], made)
    if base:
        _layer(run, base, made)
    pip = [made.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if index:
        pip += ["--index-url", index, "--extra-index-url", "https://pypi.org/simple"]
    requirement = f"{made.package}=={made.version}"
    if dependencies:
        _must(run, [*pip, requirement, *more], made)
    else:
        _must(run, [*pip, "--no-deps", requirement], made)
        if more:
            _must(run, [*pip, *more], made)
    temporary = os.path.join(place, READY + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"package": made.package, "version": made.version, "base": base, "more": list(more)}, file)
    os.replace(temporary, os.path.join(place, READY))


def versions_of(package: str, run: Run = run_command) -> list[str]:
    """Every released version on the index, the newest first; pre-releases are left out.

    Raises `EnvironmentFailed` where the index does not answer.
    """
    said = run([sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"])
    found = re.search(r"^Available versions:\s*(.+)$", said.text, re.MULTILINE)
    if said.code or found is None:
        raise EnvironmentFailed(f"the index names no versions of {package}\n{_tail(said.text)}")
    return [version.strip() for version in found[1].split(",")]


def wanted(package: str, words: Sequence[str], run: Run = run_command) -> list[str]:
    """Versions as a person names them: ``5.8.0 5.24.0``, or ``newest 3``."""
    if words and words[0] == "newest":
        number = words[1] if len(words) > 1 else "1"
        if not number.isdecimal() or not int(number) or len(words) > 2:
            raise EnvironmentFailed(
                f"{package}: 'newest {' '.join(words[1:])}' is refused; write for example: newest 3"
            )
        return versions_of(package, run)[: int(number)]
    return list(words)


def _layer(run: Run, base: str, made: Environment) -> None:
    """Put the base's packages behind the environment's own."""
    code = "import json, site; print(json.dumps(site.getsitepackages()))"
    places = json.loads(_must(run, [base, "-c", code], made).splitlines()[-1])
    own = json.loads(_must(run, [made.python, "-c", code], made).splitlines()[-1])
    with open(os.path.join(own[0], "membudget-base.pth"), "w", encoding="utf-8") as file:
        file.write("\n".join(places) + "\n")


def _must(run: Run, command: Sequence[str], made: Environment) -> str:
    said = run(command)
    if said.code:
        words = " ".join(command)
        raise EnvironmentFailed(f"{made.package} {made.version}: `{words}` ended with {said.code}\n{_tail(said.text)}")
    return said.text


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join([line for line in text.strip().splitlines() if not line.startswith("WARNING: ")][-lines:])
