"""What a real llama.cpp says beside the arithmetic, setting by setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from membudget.checkpoint.gguf_header import tensors
from membudget.checkpoint.gguf_header_keys import metadata
from membudget.engines.llama_cpp.compute import ComputeError, Header, compute_buffer
from membudget.engines.llama_cpp.memory import caches
from membudget.engines.llama_cpp.oracle.asking import Answer, ask
from membudget.engines.llama_cpp.oracle.library import Library
from membudget.engines.llama_cpp.settings import Settings
from membudget.errors import MembudgetError
from membudget.formats.gguf import Gguf
from membudget.model import Model

MIB = 2**20
#: Compute buffers closer than this are equal.
WITHIN = 0.02
PARTS = ("cache", "states", "compute")


@dataclass(frozen=True)
class Row:
    """One setting."""

    settings: Settings
    #: bytes that llama.cpp says, by part; empty where it refused
    asked: dict[str, int]
    #: ours; None where the arithmetic has no answer
    ours: dict[str, int | None]
    #: its words where it refused, else empty
    error: str = ""

    @property
    def differs(self) -> list[str]:
        """Parts that are not the same."""
        found = []
        for part, said in self.asked.items():
            own = self.ours[part]
            slack = WITHIN * said if part == "compute" else 0.03 * MIB
            if own is not None and abs(own - said) > slack:
                found.append(f"{part}: llama.cpp {said / MIB:,.2f} MiB, arithmetic {own / MIB:,.2f} MiB")
        return found

    def as_json(self) -> dict[str, Any]:
        """Bytes by part, both sides."""
        chosen = self.settings
        return {
            "ctx_size": chosen.ctx_size, "parallel": chosen.slots, "kv_unified": chosen.unified,
            "ubatch_size": chosen.ubatch_size, "flash_attn": chosen.flash_attn.value,
            "cache_type_k": chosen.cache_type_k, "cache_type_v": chosen.cache_type_v,
            "llama.cpp": self.asked, "arithmetic": self.ours, "refused": self.error, "differences": self.differs,
        }  # fmt: skip

    def line(self) -> str:
        """One line of the table."""
        chosen = self.settings
        name = f"-c {chosen.ctx_size:,} -np {chosen.slots} -ub {chosen.ubatch_size} -fa {chosen.flash_attn.value}"
        name += f" -ctk {chosen.cache_type_k} -ctv {chosen.cache_type_v}"
        if self.error:
            return f"{name}: refused: {self.error}"
        parts = []
        for part in PARTS:
            own, said = self.ours[part], self.asked[part]
            if said or own:
                known = "unknown here" if own is None else f"{own / MIB:,.2f}"
                parts.append(f"{part} {said / MIB:,.2f} (arithmetic {known})")
        return f"{name}: {', '.join(parts)}"


def compare(model: Model, layout: Gguf, settings: Sequence[Settings], library: Library | None = None) -> list[Row]:
    """Ask, then compute the same.  Raises as `ask`."""
    entries = tensors(layout, model)
    shapes = {entry.name: entry.shape for entry in entries}
    header = Header(metadata(model, shapes), shapes)
    return [_row(header, answer) for answer in ask(model, layout, settings, library)]


def _row(header: Header, answer: Answer) -> Row:
    prints, settings = answer.prints, answer.settings
    if answer.error:
        return Row(settings, {}, {}, answer.error)
    asked = {
        "cache": prints.cache_bytes, "states": prints.state_bytes, "compute": sum(prints.compute.values()),
    }  # fmt: skip
    ours: dict[str, int | None] = dict.fromkeys(PARTS)
    try:
        parts = caches(header, settings)
        ours["cache"] = sum(part.bytes for part in parts if part.name != "recurrent")
        ours["states"] = sum(part.bytes for part in parts if part.name == "recurrent")
        ours["compute"] = compute_buffer(header, settings)
    except (ComputeError, MembudgetError):
        pass  # None is "unknown here"
    return Row(settings, asked, ours)


__all__ = ["Row", "compare"]
