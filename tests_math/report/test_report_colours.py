"""The four accents: seen apart by colour-blind eyes, and seen at all, in light and dark."""

from __future__ import annotations

import itertools
import re

import pytest

from membudget.report.html import static

pytestmark = pytest.mark.suite

BUCKETS = ("weights", "kv_cache", "activations", "overhead")
#: Viénot, Brettel, Mollon 1999 (protan, deutan) on linear RGB; tritan after Brettel 1997 as in libDaltonLens.
EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),
    "deutan": ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),
    "tritan": ((1, 0.1446, -0.1446), (0, 0.8591, 0.1409), (0, 0.8591, 0.1409)),
}


def schemes() -> dict[str, dict[str, tuple[float, ...]]]:
    """The style sheet's colours, light and dark, as linear RGB."""
    light, dark = static("base.css").split("@media (prefers-color-scheme: dark)")
    found = {}
    for name, css in (("light", light), ("dark", dark[: dark.index("}")])):
        pairs = re.findall(r"--(\w+): #([0-9a-f]{6})", css)
        found[name] = {key: tuple(_linear(int(hexes[i : i + 2], 16)) for i in (0, 2, 4)) for key, hexes in pairs}
    return found


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accents_are_apart(scheme: str, eyes: str) -> None:
    """Any two buckets differ by 10 in CIE Lab, four times what is just seen, whichever cones are missing."""
    colours = schemes()[scheme]
    seen = {name: _lab(_through(EYES[eyes], colours[name])) for name in BUCKETS}
    for one, other in itertools.combinations(BUCKETS, 2):
        distance = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert distance >= 10, (one, other, distance)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accents_stand_out(scheme: str) -> None:
    """3 to 1 against the card for shapes, 4.5 to 1 for the text on them and for every text on card and paper."""
    colours = schemes()[scheme]
    for name in BUCKETS:
        assert _contrast(colours[name], colours["card"]) >= 3, name
        assert _contrast(colours[name], colours["on"]) >= 4.5, name
    for name in ("ink", "muted", "accent", "good", "bad"):
        for behind in ("paper", "card"):
            assert _contrast(colours[name], colours[behind]) >= 4.5, (name, behind)


def _linear(value: int) -> float:
    part = value / 255
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _through(matrix: tuple[tuple[float, ...], ...], colour: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(min(max(sum(m * c for m, c in zip(row, colour, strict=True)), 0), 1) for row in matrix)


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: tuple[float, ...]) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def _lab(colour: tuple[float, ...]) -> tuple[float, ...]:
    red, green, blue = colour
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, _luminance(colour), z)
    )
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)
