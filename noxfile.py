"""Standard sessions: `nox -s tests`, `nox -s lint`, and `nox -s nightly -- --transformers newest 2 --vllm newest 1`.

What nightly does is in tools/matrix.py and docs/nightly.md.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import nox

nox.options.sessions = ["tests", "lint"]
nox.options.error_on_missing_interpreters = False
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The arithmetic on every Python: no torch, no GPU."""
    session.install("-e", ".[test]", "-c", "constraints.txt")
    session.run("pytest", "-m", "math or suite", "-n", "auto", *session.posargs)


@nox.session
def oldest(session: nox.Session) -> None:
    """The lower bounds of pyproject.toml are true: the arithmetic with exactly those versions."""
    session.install("-e", ".[test]", *lower_bounds("dependencies", "test"))
    session.run("pytest", "-m", "math or suite", "-n", "auto", *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """The newest of everything, as a new user gets it."""
    session.install("--upgrade", "--upgrade-strategy", "eager", "-e", ".[test]")
    session.run("pytest", "-m", "math or suite", "-n", "auto", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint, types, and the workflows against their schema."""
    session.install("-e", ".[dev]", "-c", "constraints.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows())


@nox.session
def package(session: nox.Session) -> None:
    """Wheel and sdist, checked, and the wheel used in an empty environment."""
    session.install("-e", ".[test]", "build", "check-wheel-contents", "hatchling", "twine", "-c", "constraints.txt")
    dist = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", dist, ".")
    wheels, sources = (sorted(map(str, Path(dist).glob(ending))) for ending in ("*.whl", "*.tar.gz"))
    session.run("twine", "check", "--strict", *wheels, *sources)
    session.run("check-wheel-contents", *wheels)
    session.run("pytest", "-m", "slow", "tests_math/test_packaging.py")


@nox.session
def nightly(session: nox.Session) -> None:
    """Every engine version in an environment of its own, every tier that runs here, one record each."""
    session.install("-e", ".[test]", "-c", "constraints.txt")
    # the torch that nox's own Python has is the one for this machine: environments become layers over it
    base = ["--base", sys.executable] if find_spec("torch") and "--base" not in session.posargs else []
    session.run("python", "tools/matrix.py", *base, *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """The arithmetic changed in one place at a time: what no test notices is printed (docs/structure.md)."""
    session.install("-e", ".[test]", "mutmut>=3.8", "-c", "constraints.txt")
    session.run("mutmut", "run", *session.posargs)
    session.run("mutmut", "results")


@nox.session
def mutants_of(session: nox.Session) -> None:
    """One part of the package changed in one place at a time: `nox -s mutants_of -- formats --out results.jsonl`."""
    session.install("-e", ".[test]", "coverage>=7.10", "-c", "constraints.txt")
    session.run("python", "tools/mutants.py", *session.posargs)


@nox.session
def differential(session: nox.Session) -> None:
    """Every key of every model_type changed alone, against transformers' classes: about ten minutes on one core."""
    session.install("-e", ".[test,transformers]", "-c", "constraints.txt")
    session.run(
        "pytest", "-m", "transformers and slow", "tests_math/model/test_one_key_transformers.py", *session.posargs
    )


def lower_bounds(*groups: str) -> list[str]:
    """``pytest==8.4`` for each ``pytest>=8.4`` of the dependencies and of these extras."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    extras = project["optional-dependencies"]
    listed = [
        item for group in groups for item in (project["dependencies"] if group == "dependencies" else extras[group])
    ]
    return [item.replace(">=", "==") for item in listed if ">=" in item]


def workflows() -> list[str]:
    """The workflow files."""
    return [str(path) for path in sorted(Path(".github/workflows").glob("*.yml"))]
