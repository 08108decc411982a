"""A checkpoint against the inventory that its config predicts, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from membudget.checkpoint.entries import MAX_TENSORS, Checkpoint, CheckpointError, StoredTensor
from membudget.checkpoint.roles import PACKED, beside, canonical, layer_of, module, role_of
from membudget.formats import Format
from membudget.formats.gguf_names import named
from membudget.model import Model

Shape = tuple[int, ...]
#: Why a stored tensor is not a parameter of the text model, in words.
UNUSED = {
    "tied_head": "the output head of a model that ties it to the embedding: stored, but not loaded a second time",
    "mtp": "multi-token prediction layers: loaded only for speculative decoding",
    "vision": "the vision tower and its projector",
    "audio": "the audio tower and its projector",
    "rotary": "rotary tables: computed, not loaded",
    "kv_scale": "scales of the KV cache",
    "mask": "attention masks that old checkpoints store",
}


class Expected(NamedTuple):
    """A tensor that the config predicts.  optional: published files may leave it out."""

    name: str
    shape: Shape
    role: str
    optional: bool = False


class WrongShape(NamedTuple):
    """A tensor whose shape is not the predicted one."""

    name: str
    expected: Shape
    found: Shape


class Regrouped(NamedTuple):
    """Tensors of one layer and role that hold the predicted number of elements under other names (fused, stacked)."""

    layer: int | None
    role: str
    expected: tuple[str, ...]
    found: tuple[str, ...]
    elements: int


class Differences(NamedTuple):
    """missing: predicted, not stored.  extra: stored, not predicted and not explained.

    wrong_shape: stored in another shape.  unused: stored beside the text model, by kind
    (the keys of `UNUSED`).  regrouped: the same elements under other names.
    packed: weights stored in a quantizer's own tensors, whose shapes only a `Format` predicts.
    """

    missing: tuple[Expected, ...]
    extra: tuple[StoredTensor, ...]
    wrong_shape: tuple[WrongShape, ...]
    unused: dict[str, tuple[StoredTensor, ...]]
    regrouped: tuple[Regrouped, ...]
    packed: int

    @property
    def ok(self) -> bool:
        """Whether everything predicted is there and everything there is explained."""
        return not (self.missing or self.extra or self.wrong_shape)

    @property
    def unused_bytes(self) -> int:
        """Bytes of all that is stored and not used by the text model."""
        return sum(entry.nbytes for entries in self.unused.values() for entry in entries)


def compare(checkpoint: Checkpoint, model: Model, form: Format | None = None) -> Differences:
    """Compare name by name and shape by shape.

    form: the weight format, if the packed tensors' own shapes are to be compared too
        (`membudget.formats.of_config`); without it a packed weight counts as present.
    """
    names = sum(tensor.copies for tensor in model.tensors if "*" in tensor.name) + len(model.tensors)
    if names > MAX_TENSORS * 4:
        what = f"the config describes {names:,} tensors, and no checkpoint has more than {MAX_TENSORS:,}"
        raise CheckpointError(checkpoint.source, None, what)
    expected = {canonical(item.name): item for item in _expected(checkpoint, model, form)}
    left: list[StoredTensor] = []
    unused: dict[str, list[StoredTensor]] = {}
    wrong: list[WrongShape] = []
    found: set[str] = set()
    packed: set[str] = set()
    by_module = {module(name): name for name in expected}
    for entry in checkpoint.entries:
        name = canonical(entry.name)
        item = expected.get(name)
        if item is not None:
            found.add(name)
            if item.optional and item.role == "mtp":
                unused.setdefault("mtp", []).append(entry)
            if not _same_shape(item.shape, entry.shape) and not _packed_in_place(entry, form):
                wrong.append(WrongShape(entry.name, item.shape, entry.shape))
            continue
        kind = _unused(entry, model)
        if kind is not None:
            unused.setdefault(kind, []).append(entry)
            continue
        stem = by_module.get(module(name))
        if form is None and stem is not None and _is_packed(name):
            packed.add(stem)
            continue
        left.append(entry)
    missing = [item for name, item in expected.items() if name not in found and name not in packed]
    missing, left, regrouped = _regroup(missing, left, checkpoint.kind)
    return Differences(
        tuple(item for item in missing if not item.optional),
        tuple(left),
        tuple(wrong),
        {kind: tuple(entries) for kind, entries in unused.items()},
        tuple(regrouped),
        len(packed),
    )


def _expected(checkpoint: Checkpoint, model: Model, form: Format | None) -> Iterable[Expected]:
    for tensor in model.tensors:
        optional = tensor.part != "params"
        if checkpoint.kind == "gguf":
            if tensor.role in ("vision", "audio", "mtp"):
                continue  # in a file of their own (mmproj), or left out by the converter
            for item in named(tensor, model):
                yield Expected(item.name, item.shape, tensor.role, optional)
        elif form is not None:
            for stored in form.stored(tensor, model):
                for each in stored.expand():
                    yield Expected(each.name, each.shape, tensor.role, optional)
        else:
            for name, shape in tensor.expand():
                yield Expected(name, shape, tensor.role, optional)


def _unused(entry: StoredTensor, model: Model) -> str | None:
    kind = beside(entry.name)
    if kind is not None:
        return kind
    layer = layer_of(entry.name)
    if layer is not None and layer >= model.config.layers:
        return "mtp"
    if model.config.tied and canonical(entry.name) in ("lm_head.weight", "output.weight"):
        return "tied_head"
    return None


def _same_shape(one: Shape, other: Shape) -> bool:
    """Equal, apart from extents of 1 (a convolution's (width, 1, kernel), a shared expert's gate)."""
    return one == other or [extent for extent in one if extent != 1] == [extent for extent in other if extent != 1]


def _is_packed(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in PACKED or last.endswith(("_blocks", "_scales", "_scale", "_scale_inv", "_scale_2", "_packed"))


def _packed_in_place(entry: StoredTensor, form: Format | None) -> bool:
    """bitsandbytes, NVFP4 and FP8 keep the name ``weight`` for packed bytes.

    bitsandbytes' quant_state is JSON text: its length depends on how a float prints.
    """
    return ".quant_state." in entry.name or (form is None and entry.dtype in ("U8", "I8", "I32", "F4"))


def _regroup(
    missing: list[Expected], left: list[StoredTensor], kind: str
) -> tuple[list[Expected], list[StoredTensor], list[Regrouped]]:
    """Within one layer and role, other names with the same elements are the same weights."""
    wanted: dict[tuple[int | None, str], list[Expected]] = {}
    have: dict[tuple[int | None, str], list[StoredTensor]] = {}
    for item in missing:
        wanted.setdefault((layer_of(item.name), _bucket(item.role)), []).append(item)
    for entry in left:
        have.setdefault((layer_of(entry.name), _bucket(role_of(entry.name, kind))), []).append(entry)
    regrouped = []
    for group in [group for group in wanted if group in have]:
        needed = [item for item in wanted[group] if not item.optional]
        elements = sum(_size(item.shape) for item in needed)
        if not elements or elements != sum(entry.elements for entry in have[group]):
            continue
        layer, role = group
        names = tuple(item.name for item in needed), tuple(entry.name for entry in have[group])
        regrouped.append(Regrouped(layer, role, *names, elements))
        del wanted[group], have[group]
    rest = [item for items in wanted.values() for item in items]
    return rest, [entry for entries in have.values() for entry in entries], regrouped


def _bucket(role: str) -> str:
    """Recurrent mixers and attention are one group: their names overlap."""
    bucket = role.partition(".")[0]
    return "attn" if bucket == "mixer" else role if bucket == "mlp" else bucket


def _size(shape: Shape) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
