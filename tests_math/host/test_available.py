"""What a machine can run: the reasons of skips, and the GPUs as the driver names them."""

from __future__ import annotations

import pytest

from membudget.host import available
from membudget.host.available import Lack

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.suite

INSTALL = "pip install 'membudget[transformers]'"
BOTH = f"needs torch and transformers, not installed here: {INSTALL}"
NO_GPU = "nvidia-smi lists none"


@pytest.mark.parametrize(
    ("marker", "gpus", "packages", "reason"),
    [
        ("math", (), (), None),
        ("slow", (), (), None),
        ("transformers", (), (), BOTH),
        ("transformers", (), ("torch",), f"needs transformers, not installed here: {INSTALL}"),
        ("transformers", (), ("torch", "transformers"), None),
        ("cpu", (), ("torch", "transformers"), None),
        ("cpu", (), (), BOTH),
        ("cuda", (), ("torch", "transformers"), f"needs an NVIDIA GPU; {NO_GPU}"),
        ("cuda", ("NVIDIA H200",), ("torch", "transformers"), None),
        ("cuda", ("NVIDIA H200",), (), BOTH),
        (
            "spark", (), ("torch", "transformers"),
            "needs a DGX Spark (an NVIDIA GPU named GB10); nvidia-smi lists none",
        ),
        (
            "spark", ("NVIDIA GeForce RTX 4090",), ("torch", "transformers"),
            "needs a DGX Spark (an NVIDIA GPU named GB10); this machine has NVIDIA GeForce RTX 4090",
        ),
        ("spark", ("NVIDIA GB10",), ("torch", "transformers"), None),
        ("spark", ("NVIDIA GB10",), (), BOTH),
    ],
)  # fmt: skip
def test_skips_name_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, marker: str, gpus: tuple[str, ...], packages: tuple[str, ...], reason: str | None
) -> None:
    """Software that is not installed with the command that installs it, hardware with what is there instead."""
    monkeypatch.setattr(available, "gpus", lambda: gpus)
    monkeypatch.setattr(available, "_listed", lambda: ((), None))
    monkeypatch.setattr(available, "_installed", lambda name: name in packages)
    monkeypatch.setattr(available, "_torch_version", lambda: "2.13.0")
    lack = available.missing(marker)
    assert (lack and str(lack)) == reason


def test_a_torch_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is there, and the CPU build of torch."""
    monkeypatch.setattr(available, "gpus", lambda: ("NVIDIA L4",))
    monkeypatch.setattr(available, "_installed", lambda name: True)
    monkeypatch.setattr(available, "_torch_version", lambda: "2.13.0+cpu")
    lack = available.missing("cuda")
    assert lack is not None
    assert lack.code is Lack.TORCH_CUDA


@pytest.mark.parametrize(
    ("answer", "code", "names"),
    [
        ("GPU 0: NVIDIA GB10 (UUID: GPU-1)\n", 0, ("NVIDIA GB10",)),
        ("GPU 0: NVIDIA L4 (UUID: GPU-1)\nGPU 1: NVIDIA L4 (UUID: GPU-2)\n", 0, ("NVIDIA L4", "NVIDIA L4")),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9, ()),
        ("No devices were found\n", 0, ()),
        ("", 0, ()),
    ],
)
def test_gpus_are_read_from_the_driver(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, names: tuple[str, ...]
) -> None:
    """`nvidia-smi -L` as the driver prints it; a broken driver is no GPU, not a crash."""
    command = pytester.path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\ncat <<'EOF'\n{answer}EOF\nexit {code}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(pytester.path), prepend=":")
    available.gpus.cache_clear()
    available._listed.cache_clear()
    try:
        assert available.gpus() == names
    finally:
        available.gpus.cache_clear()
        available._listed.cache_clear()
