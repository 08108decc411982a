"""Parameters of a model from its config.json: in all, by role, and layer by layer."""

from __future__ import annotations

from typing import Any

from membudget.checkpoint import Checkpoint, compare, read_path
from membudget.cli.commands import Result, stored
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import build_model, model_argument
from membudget.model import CacheSpec, Model, Tensor
from membudget.sources.checkpoints import checkpoint_of, read
from membudget.sources.locate import Located, locate
from membudget.text.terminal import Terminal, plain, table


def options(parser: Declares) -> None:
    """The arguments of `membudget count`."""
    model_argument(parser)
    parser.add_argument("--layers", action="store_true", help="also every kind of layer: its parameters and its cache")
    parser.add_argument("--headers", action="store_true", help="of a hub id: read its files' headers too, and compare")
    parser.add_argument("--tensors", action="store_true", help="also every tensor: name, shape, role")


def run(args: Arguments) -> Result:
    """Count; where weight files lie, compare them with what the config predicts (exit code 1: they differ)."""
    found = locate(args.model, offline=True if args.offline else None)
    if found.config is None:
        return _stored_only(args, found)
    model = build_model(args, found)
    layers = groups(model)
    document = _document(model, found, layers)
    if args.tensors:
        document["tensors"] = [_tensor(tensor) for tensor in model.tensors]
    checkpoint = _checkpoint(args, found)
    if checkpoint is None:
        return Result(0, document, lambda: _text(model, layers, args))
    differ = compare(checkpoint, model)
    params = model.count.params
    document["stored"] = stored.as_json(checkpoint, differ, params)
    return Result(
        0 if differ.ok else 1,
        document,
        lambda: "\n".join([_text(model, layers, args), "", *stored.text(checkpoint, differ, params)]),
    )


def _checkpoint(args: Arguments, found: Located) -> Checkpoint | None:
    if found.kind in ("path", "gguf", "safetensors"):
        return checkpoint_of(found)
    if not args.headers:
        return None
    return read(found.repo or args.model, offline=True if args.offline else None)


def _stored_only(args: Arguments, found: Located) -> Result:
    """Weights without a config.json: what the headers say, and no parameter count, since packed weights hide it."""
    checkpoint = read_path(found.path)
    document = {
        "model": args.model,
        "source": found.source,
        "params": None,
        "stored": stored.as_json(checkpoint, None, None),
    }
    note = "no config.json beside it: what the tensors make up is not known"
    return Result(0, document, lambda: "\n".join([*stored.text(checkpoint, None, None), note]))


class Layers:
    """Layers that are made alike and keep alike: `first` .. `last` of the stack called `prefix`."""

    __slots__ = ("active", "by_part", "cache", "first", "key", "last", "params", "prefix")

    def __init__(self, prefix: str, number: int) -> None:
        self.prefix, self.first, self.last = prefix, number, number
        self.by_part: dict[str, int] = {}
        self.params = self.active = 0
        self.cache: CacheSpec | None = None
        self.key: tuple[object, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Elements of one of the layers."""
        return {
            "prefix": self.prefix,
            "first": self.first,
            "last": self.last,
            "params": self.params,
            "active": self.active,
            "by_part": self.by_part,
            "cache": None if self.cache is None else cache_text(self.cache),
            "cache_elements_per_token": None if self.cache is None else self.cache.per_token,
        }


def groups(model: Model) -> list[Layers]:
    """The model's layers, neighbours that are alike put together."""
    stacks: dict[tuple[str, int], Layers] = {}
    order: list[str] = []
    for tensor in model.tensors:
        if tensor.part != "params":
            continue
        prefix, number = _position(tensor.name)
        if number is None:
            continue
        if prefix not in order:
            order.append(prefix)
        layer = stacks.setdefault((prefix, number), Layers(prefix, number))
        layer.by_part[tensor.role] = layer.by_part.get(tensor.role, 0) + tensor.elements
        layer.params += tensor.elements
        layer.active += tensor.active_elements
    text = _text_stack(model, order)
    caches = {spec.layer: spec for spec in model.caches}
    found: list[Layers] = []
    for layer in sorted(stacks.values(), key=lambda layer: (order.index(layer.prefix), layer.first)):
        layer.cache = caches.get(layer.first) if layer.prefix == text else None
        kept = layer.cache._replace(layer=0) if layer.cache else None
        layer.key = (layer.prefix, tuple(layer.by_part.items()), layer.active, kept)
        if found and found[-1].key == layer.key and found[-1].last + 1 == layer.first:
            found[-1].last = layer.first
        else:
            found.append(layer)
    return found


def cache_text(spec: CacheSpec) -> str:
    """What a layer keeps, in words and elements."""
    parts = []
    if spec.kv_heads:
        parts.append(f"{spec.kv_heads} heads x ({spec.k_dim} + {spec.v_dim})")
    if spec.latent or spec.rope:
        parts.append(f"{spec.latent} + {spec.rope}")
    if spec.index:
        parts.append(f"index {spec.index}")
    if spec.window:
        parts.append(f"window {spec.window:,}")
    parts += [f"{state.name} {state.elements:,}{' in fp32' if state.fp32 else ''}" for state in spec.states]
    return spec.kind + (": " + ", ".join(parts) if parts else "")


def _position(name: str) -> tuple[str, int | None]:
    """The stack and the number of the layer that a tensor is part of; the stack alone where it is in none."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[:place]), int(part)
    return "", None


def _text_stack(model: Model, prefixes: list[str]) -> str | None:
    """The stack that the caches belong to: the one with as many layers."""
    counts: dict[str, set[int]] = {prefix: set() for prefix in prefixes}
    for tensor in model.tensors:
        prefix, number = _position(tensor.name)
        if number is not None and prefix in counts:
            counts[prefix].add(number)
    wanted = len(model.caches)
    alike = [prefix for prefix in prefixes if len(counts[prefix]) == wanted]
    named = [prefix for prefix in alike if not any(word in prefix for word in ("vision", "visual", "audio"))]
    return next(iter(named or alike), None)


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "role": tensor.role,
        "copies": tensor.copies,
        "active": tensor.copies if tensor.active is None else tensor.active,
        "part": tensor.part,
    }


def _document(model: Model, found: Located, layers: list[Layers]) -> dict[str, Any]:
    count = model.count
    return {
        "model": model.name,
        "model_type": model.model_type,
        "source": found.source,
        "params": count.params,
        "active": count.active,
        "checkpoint": count.checkpoint,
        "by_role": count.by_role,
        "by_part": count.by_part,
        "unknown": list(model.unknown),
        "unproven": model.unproven,
        "notes": model.notes,
        "assumed": model.config.assumed(),
        "layers": [layer.as_json() for layer in layers],
    }


def _text(model: Model, layers: list[Layers], args: Arguments) -> str:

    terminal, count = Terminal.of(), model.count
    lines = [terminal.dot.join([terminal.paint(plain(model.name), "bold"), plain(model.model_type)]), ""]
    rows = [["params", f"{count.params:,}", ""]]
    if count.active != count.params:
        rows.append(["active", f"{count.active:,}", "one token reads"])
    if count.checkpoint != count.params:
        rows.append(["checkpoint", f"{count.checkpoint:,}", "with what published files store beside them"])
    rows.append(["", "", ""])
    for role, size in count.by_role.items():
        rows.append([role, f"{size:,}", _share(size, count.params) or _none(role, model)])
        inner = {part: n for part, n in count.by_part.items() if part.partition(".")[0] == role and part != role}
        rows += [[f"  {part.partition('.')[2]}", f"{n:,}", _share(n, count.params)] for part, n in inner.items()]
    lines += table(rows, "<><")
    if args.layers:
        lines += ["", "one layer of each kind"]
        lines += table([_row(layer) for layer in layers], "<><<")
    if args.tensors:
        lines += ["", "tensors (* stands for every copy)"]
        rows = [
            [plain(t.name) if "*" not in t.name else t.name, " x ".join(f"{n:,}" for n in t.shape), t.role, _copies(t)]
            for t in model.tensors
        ]
        lines += table(rows, "<><<")
    assumed = ", ".join(f"{key} {value}" for key, value in model.config.assumed().items())
    if assumed:
        lines += terminal.wrap(f"not in the config.json, so as the class has it: {assumed}", "", "- ")
    if model.unproven:
        lines += terminal.wrap(
            f"unproven: {model.model_type} treated as {model.read_as} because of --as; not verified", "", "- "
        )
    for note in [*(f"not counted: {part}" for part in model.unknown), *model.notes]:
        lines += terminal.wrap(note, "", "- ")
    return "\n".join(lines)


def _row(layer: Layers) -> list[str]:
    number = f"{layer.first}" if layer.first == layer.last else f"{layer.first} .. {layer.last}"
    parts = ", ".join(f"{part} {size:,}" for part, size in layer.by_part.items())
    return [f"{layer.prefix}.{number}", f"{layer.params:,}", parts, cache_text(layer.cache) if layer.cache else ""]


def _copies(tensor: Tensor) -> str:
    copies = f"{tensor.copies:,} copies" if tensor.copies > 1 else ""
    active = f"{tensor.active:,} active" if tensor.active not in (None, tensor.copies) else ""
    beside = "beside the parameters" if tensor.part != "params" else ""
    return ", ".join(part for part in (copies, active, beside) if part)


def _share(size: int, whole: int) -> str:
    return f"{100 * size / whole:.1f}%" if size and whole else ""


def _none(role: str, model: Model) -> str:
    return "tied to the embedding" if role == "lm_head" and model.config.tied else ""
