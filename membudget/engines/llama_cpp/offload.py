"""Where llama.cpp puts what: layers by ``-ngl`` and ``-ts``, experts by ``--n-cpu-moe``, tensors by ``-ot``.

The embedding table is always on the host; the head counts as one more layer behind the last; a model that ties them
keeps the table on the host and a copy on the head's device.
Source: llama.cpp v0.4.0 src/llama-model.cpp (load_tensors), src/llama-arch.cpp (LLM_TENSOR_INFOS), common/arg.cpp.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence

from membudget.engines.llama_cpp.settings import Settings

HOST = "host"
#: Tensors that are read by rows on the host (LLM_TENSOR_LAYERINPUT).
INPUT = ("token_embd.weight", "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")
_EXPERTS = r"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def device_of(layer: int, layers: int, settings: Settings, devices: int) -> str:
    """``host``, or the number of the device that a layer is on; the head is layer number `layers`."""
    wanted = layers + 1 if settings.n_gpu_layers is None else settings.n_gpu_layers
    if not devices or not wanted:
        return HOST
    start, count = max(layers + 1 - wanted, 0), min(wanted, layers + 1)
    if layer < start or layer - start >= count:
        return HOST
    shares: Sequence[float] = settings.tensor_split[:devices] or (1.0,) * devices
    ends, total = [], 0.0
    for share in shares:
        total += share
        ends.append(total)
    if not total:
        shares, ends, total = (1.0,) * devices, [float(number + 1) for number in range(devices)], float(devices)
    return str(min(bisect.bisect_right([end / total for end in ends], (layer - start) / count), devices - 1))


def weights(sizes: Mapping[str, int], layers: int, settings: Settings, devices: int) -> dict[str, int]:
    """Bytes of weights by place: ``host`` and device numbers.  sizes: of every tensor of the file, by name."""
    found: dict[str, int] = {HOST: 0}
    for name, place in places(sizes, layers, settings, devices).items():
        found[place] = found.get(place, 0) + sizes[name]
    head = device_of(layers, layers, settings, devices)
    if "output.weight" not in sizes and head != HOST:
        found[head] = found.get(head, 0) + sizes.get("token_embd.weight", 0)
    return found


def places(names: Iterable[str], layers: int, settings: Settings, devices: int) -> dict[str, str]:
    """The place of every tensor."""
    patterns = [(re.compile(pattern), place) for pattern, place in settings.override_tensor]
    patterns += [(re.compile(_EXPERTS.format(layer=layer)), "CPU") for layer in range(settings.n_cpu_moe)]
    by_layer = {layer: device_of(layer, layers, settings, devices) for layer in range(layers + 1)}
    return {name: _forced(name, patterns) or _place(name, by_layer, by_layer[layers]) for name in names}


def _forced(name: str, patterns: Iterable[tuple[re.Pattern[str], str]]) -> str:
    """The place that the first pattern found in a name says; empty for none."""
    for pattern, place in patterns:
        if pattern.search(name):
            return HOST if place.startswith("CPU") else re.sub(r"\D", "", place) or place
    return ""


def _place(name: str, by_layer: Mapping[int, str], head: str) -> str:
    if name in INPUT:
        return HOST
    if name.startswith("blk."):
        return by_layer.get(int(name.split(".", 2)[1]), head)
    return head


__all__ = ["HOST", "device_of", "places", "weights"]
