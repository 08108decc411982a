"""What llama.cpp's answer is made of, beside its lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from membudget.engines.base import Line, sums_of
from membudget.engines.llama_cpp.settings import Settings

#: Whose rules these are.
VERSION = "v0.4.0"


@dataclass(frozen=True)
class LlamaDetails:
    """What llama.cpp's answer is made of."""

    settings: Settings
    #: layers on devices and in all, the output layer counted
    offloaded: tuple[int, int]
    host: tuple[Line, ...]
    version: str = VERSION

    @property
    def cache(self) -> str:
        """The types of keys and values where they differ, "" where one name says both."""
        k, v = self.settings.cache_type_k, self.settings.cache_type_v
        return "" if k == v else f"{k} keys, {v} values"

    def as_json(self) -> dict[str, Any]:
        """By llama.cpp's names; RAM beside the devices by bucket, in bytes."""
        chosen = self.settings
        return {
            "version": self.version,
            "ctx_size": chosen.ctx_size,
            "parallel": chosen.slots,
            "kv_unified": chosen.unified,
            "ubatch_size": chosen.ubatch_size,
            "flash_attn": chosen.flash_attn.value,
            "cache_type_k": chosen.cache_type_k,
            "cache_type_v": chosen.cache_type_v,
            "layers_on_devices": self.offloaded[0],
            "layers": self.offloaded[1],
            "host": sums_of(self.host),
            "host_lines": [line.as_json() for line in self.host],
        }
