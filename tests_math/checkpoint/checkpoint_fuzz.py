"""Mutates sound headers many times: ``python -m tests_math.checkpoint.checkpoint_fuzz 100000``.

safetensors: we accept no file that the library refuses, and refuse one that it accepts only
for a name that stands twice.  GGUF: a header or a CheckpointError, nothing else.  Prints
every input that breaks this; such inputs become tests.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import tempfile
import time
from pathlib import Path

from membudget.checkpoint import CheckpointError, read_path
from membudget.checkpoint.gguf_file import parse_header

TEXTS = (
    b'{"__metadata__":{"format":"pt","x":"\\u00e9{}[]\\""},"a.b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
    b'"c":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}',
    b'{"w": {"shape": [3, 3], "data_offsets": [0, 9], "dtype": "I8"}}  ',
    b"{}",
)
PIECES = [
    b'"',
    b",",
    b"{",
    b"}",
    b"[",
    b"]",
    b" ",
    b"\\",
    b"\\u",
    b"\xff",
    b":",
    b"null",
    b"1e1",
    b".0",
    b"-",
    b"0",
    b"9",
]
PIECES += [
    b"true",
    b'"__metadata__":{}',
    b'"__metadata__":null,',
    b"\n",
    b"\0",
    b"18446744073709551616",
    b"\\ud800",
    b"\t",
]


def mutate(rng: random.Random, content: bytes, pieces: list[bytes]) -> bytes:
    """One to three cuts, insertions, swaps or repetitions."""
    text = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text[at : at + rng.randint(0, 3)] = rng.choice(pieces)
            case 1:
                del text[at : at + rng.randint(1, 12)]
            case 2:
                text[at:at] = text[at : at + rng.randint(1, 60)]
            case _ if at < len(text):
                text[at] = rng.randrange(256)
    return bytes(text)


def fuzz_safetensors(rng: random.Random, folder: Path) -> str | None:
    """One input; returns what is wrong with the outcome."""
    from safetensors import SafetensorError, deserialize

    text = mutate(rng, rng.choice(TEXTS), PIECES)
    content = struct.pack("<Q", max(0, len(text) + rng.choice([0] * 8 + [1, -1]))) + text + b"\0" * 9
    path = folder / "fuzz.safetensors"
    path.write_bytes(content)
    try:
        deserialize(content)
        theirs = True
    except SafetensorError:
        theirs = False
    try:
        read_path(str(path))
        ours = True
    except CheckpointError:
        ours = False
    if ours == theirs or (theirs and name_twice(text)):
        return None
    return f"safetensors {'accepted by us only' if ours else 'refused by us only'}: {content!r}"


def name_twice(text: bytes) -> bool:
    """Whether any JSON object in the text has a key twice."""
    found: list[bool] = []
    json.JSONDecoder(object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) != len(pairs))).raw_decode(
        text.decode("utf-8", "replace").lstrip()
    )
    return any(found)


def fuzz_gguf(rng: random.Random, sound: bytes) -> str | None:
    """One input; returns what is wrong with the outcome."""
    numbers = [struct.pack("<Q", n) for n in (0, 1, 2, 255, 2**31, 2**32, 2**40, 2**63, 2**64 - 1)]
    numbers += [struct.pack("<I", n) for n in range(14)]
    content = mutate(rng, sound, numbers)
    try:
        parse_header(content, len(content), "fuzz", "fuzz")
    except CheckpointError as error:
        return None if str(error).startswith("fuzz") else f"gguf error without a file: {error}"
    except Exception as error:
        return f"gguf {type(error).__name__} {error}: {content!r}"
    return None


def main(count: int, seed: int = 0) -> int:
    """Run `count` inputs, half of each kind; returns how many were wrong."""
    from tests_math.checkpoint.test_checkpoint_gguf import header

    rng, wrong, start, slowest = random.Random(seed), 0, time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            before = time.perf_counter()
            found = fuzz_gguf(rng, header()) if number % 2 else fuzz_safetensors(rng, Path(folder))
            slowest = max(slowest, time.perf_counter() - before)
            if found:
                wrong += 1
                print(found)
    print(f"{count:,} inputs, {wrong} wrong, {time.perf_counter() - start:.0f} s, slowest {slowest * 1000:.1f} ms")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000) else 0)
