"""docs/lesson.md: a guided hour, each step a command with what it prints.

`python tools/lesson_docs.py` writes it, `--check` compares.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.cli.main import main as membudget  # noqa: E402
from membudget.units import KIB, MIB  # noqa: E402

PAGE = ROOT / "docs" / "lesson.md"
LONGEST = 14
#: Title, what to look at, the command.
STEPS = (
    (
        "Parameters come from the config",
        "Every tensor is counted; no weight is loaded. Attention is a sixth of a 70B model, the MLP four fifths.",
        "membudget count meta-llama/Llama-3.1-70B",
    ),
    (
        "Weights are parameters times bytes",
        "A 4-bit mix is not 4 bits a parameter: norms and embeddings keep more. The table says what each format takes.",
        "membudget formats meta-llama/Llama-3.1-8B --machine rtx-4090",
    ),
    (
        "A cache grows with every token of every user",
        "80 layers, keys and values, 64 KV heads of 128 numbers of 2 bytes: 2,621,440 B a token. No device has "
        "room for 104 users of 8,192 tokens.",
        "membudget fleet --params 70 --layers 80 --kv-heads 64 --users 104",
    ),
    (
        "Grouped-query attention divides it by eight",
        "8 KV heads in place of 64: 327,680 B a token. The same users, an eighth of the cache.",
        "membudget fleet --params 70 --layers 80 --kv-heads 8 --users 104",
    ),
    (
        "An fp8 cache halves it again",
        "One byte a number: 163,840 B a token, and 104 users of 8,192 tokens are below the memory of one node.",
        "membudget fleet --params 70 --layers 80 --kv-heads 8 --users 104 --kv-cache-dtype fp8",
    ),
    (
        "One machine, one answer",
        "Four buckets, the verdict, and how many users would fit.",
        "membudget plan Qwen/Qwen3-8B --machine dgx-spark --ctx 32k --users 8",
    ),
    (
        "What does not fit says what would",
        "The bucket that is short, by how much, and the smallest changes.",
        "membudget plan meta-llama/Llama-3.1-8B --machine rtx-4090 --ctx 8k --users 8",
    ),
    (
        "A budget holds it",
        "The file that `init` writes is a test: plain `pytest` and `membudget check` run it.",
        "membudget init Qwen/Qwen3-8B --machine h100-80gb --users 8",
    ),
    ("Check it", "Every budget of a folder, in one table.", "membudget check"),
)
#: Lesson's figure, the words, the command, and where its JSON has it, in bytes.
FIGURES: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    ("2,621,440 B a token: MHA, 64 KV heads", 2_621_440,
     "membudget fleet --params 70 --layers 80 --kv-heads 64 --ctx 1", ("kv_cache",)),
    ("2,560 KiB a token: the same in KiB", 2560 * KIB,
     "membudget fleet --params 70 --layers 80 --kv-heads 64 --ctx 1", ("kv_cache",)),
    ("2.5 MiB a token: the same in MiB", 5 * MIB // 2,
     "membudget fleet --params 70 --layers 80 --kv-heads 64 --ctx 1", ("kv_cache",)),
    ("0.3125 MiB a token: GQA, 8 KV heads", 327_680,
     "membudget fleet --params 70 --layers 80 --kv-heads 8 --ctx 1", ("kv_cache",)),
    ("163,840 B a token: GQA, fp8", 163_840,
     "membudget fleet --params 70 --layers 80 --kv-heads 8 --kv-cache-dtype fp8 --ctx 1", ("kv_cache",)),
    ("8,030,261,248 parameters of Llama 3.1 8B", 8_030_261_248,
     "membudget count meta-llama/Llama-3.1-8B", ("params",)),
)  # fmt: skip


def said(command: str) -> str:
    """What a command prints, on 100 columns, without colour."""
    kept = io.BytesIO()
    out = io.TextIOWrapper(kept, encoding="utf-8", newline="\n")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        membudget(shlex.split(command)[1:])
    out.flush()
    return kept.getvalue().decode("utf-8").rstrip("\n")


def figure(command: str, path: tuple[str, ...]) -> Any:
    """A value of a command's JSON."""
    found: Any = json.loads(said(f"{command} --json"))
    for name in path:
        found = found[name]
    return found


def page() -> str:
    """The page, its commands run in an empty folder."""
    parts = [
        "# A guided hour",
        "",
        "<!-- Written by tools/lesson_docs.py; a test runs every step and compares. -->",
        "",
        "From a config.json to a budget that a test holds. Each step is a command and what it prints; the first lines",
        "of long answers.",
    ]
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="membudget-lesson-") as folder:
        os.chdir(folder)
        try:
            for number, (title, text, command) in enumerate(STEPS, 1):
                lines = said(command).splitlines()
                more = ["..."] if len(lines) > LONGEST else []
                parts += ["", f"## {number}. {title}", "", text, "", "```console", f"$ {command}"]
                parts += [*(line.rstrip() for line in lines[:LONGEST]), *more, "```"]
        finally:
            os.chdir(before)
    parts += ["", "## The lesson's figures", "", "| lesson | ours | command |", "|---|---:|---|"]
    for text, expected, command, path in FIGURES:
        found = figure(command, path)
        mark = f"{found:,}" if found == expected else f"**{found:,}**"
        parts.append(f"| {text} | {mark} | `{command}` |")
    return "\n".join([*parts, ""])


def main() -> int:
    """Write it; with --check say whether it is what the commands print."""
    os.environ.update(COLUMNS="100", NO_COLOR="1", HF_HUB_OFFLINE="1")
    if sys.argv[1:] == ["--check"]:
        before = PAGE.read_text(encoding="utf-8").splitlines()
        found = list(difflib.unified_diff(before, page().splitlines(), "docs/lesson.md", "as the commands print it"))
        print("\n".join(found))
        return 1 if found else 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
