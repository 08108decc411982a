"""What a CI service shows of a failed budget: GitHub's annotations beside the budget's line."""

from __future__ import annotations

from collections.abc import Mapping


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether this is a GitHub workflow."""
    return environment.get("GITHUB_ACTIONS") == "true"


def annotation(title: str, text: str, file: str = "", line: int = 0) -> str:
    """One line of GitHub's workflow commands: an error at a file's line, with a title and a message."""
    places = {"file": file, "line": str(line) if line else "", "title": title}
    words = ",".join(f"{name}={_property(value)}" for name, value in places.items() if value)
    return f"::error {words}::{_data(text)}"


def _data(text: str) -> str:
    """Escaped as GitHub's toolkit does it: a message has percent signs and ends of lines encoded."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
