"""Attacks at every door: files, names, logs and the environment come from strangers.  See SECURITY.md.

What has a file of its own is not repeated here: malformed headers (test_checkpoint_*), hostile names (test_locate),
damaged logs (test_log_fuzz), HTML (test_report, test_explore), YAML traps (test_budget_file).
"""

from __future__ import annotations

import ast
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from membudget.measure.lock import Busy, machine_lock

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[1]
TOKEN = "hf_" + "Zq7" * 12
Run = Callable[..., tuple[int, str, str]]
#: What no terminal may get from a file: every control character but tab and newline, and what reorders text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: A window title, the clipboard, an alternate screen, a hidden answer, a colour, right-to-left text.
EVIL = "\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x07\x1b[?1049h\x1b[8m\x1b[31m\u202egnp"

#: One command line under limits of its own: 1.5 GiB of addresses, 20 s of CPU.
_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**29, 3 * 2**29))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from membudget.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def limited(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `membudget` so that a bomb ends this process and not the machine."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd), **env}
    command = [sys.executable, "-c", _LIMITED, *argv]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=120, errors="replace"
    )


def harmless(done: subprocess.CompletedProcess[str], *codes: int) -> str:
    """One message and a documented exit code: no traceback, no bug, nothing for the terminal to obey."""
    said = done.stdout + done.stderr
    assert done.returncode in codes, said
    assert "Traceback" not in said
    assert "internal error" not in said
    assert not CONTROL.search(said), repr(said)
    assert len(said) < 20_000
    return said


# -- code ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "model: !!python/object/apply:os.system ['touch owned']\n",
        "model: !!python/name:os.system\n",
        "!!python/object/new:os.system [touch owned]\n",
        "model: !!python/object/apply:subprocess.check_output [[touch, owned]]\n",
        "model: !ruby/object:Gem::Installer {i: x}\n",
        "<<: !!python/module:os {}\n",
    ],
)
@pytest.mark.parametrize("door", ["budget", "machines"])
def test_yaml_makes_no_objects(text: str, door: str, tmp_path: Path) -> None:
    """Tags are refused with their line, by budgets and by machine files; nothing runs."""
    (tmp_path / "x.yaml").write_text(text)
    argv = ["check", "x.yaml"] if door == "budget" else ["machines", "--machines", "x.yaml"]
    assert "x.yaml:1" in harmless(limited(*argv, cwd=tmp_path), 2)
    assert not (tmp_path / "owned").exists()


def test_a_models_own_code_is_never_run(tmp_path: Path) -> None:
    """auto_map, custom code beside the config, and a trust_remote_code in it: read as data by every command."""
    config = json.loads((ROOT / "membudget" / "data" / "models" / "Qwen--Qwen3-8B.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    config["trust_remote_code"] = True
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("evil.py", "modeling_evil.py", "conftest.py", "sitecustomize.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
    for argv in (
        ["plan", "model", "--machine", "h100"],
        ["count", "model"],
        ["pool", "model", "--machine", "h100"],
        ["init", "model", "--machine", "h100"],
        ["check"],
        ["explore", "model", "-o", "page.html"],
    ):
        harmless(limited(*argv, cwd=tmp_path), 0)
    assert not (tmp_path / "owned").exists()


def test_no_door_to_code_in_the_source() -> None:
    """No eval, pickle, unsafe YAML, shell or torch.load anywhere, and trust_remote_code is False wherever it stands."""
    bad: list[str] = []
    for path in [*(ROOT / "membudget").rglob("*.py"), *(ROOT / "tests_hw").glob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                bad += [
                    f"{where} {name}" for name in names if name.split(".")[0] in ("pickle", "marshal", "shelve", "dill")
                ]
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "torch.load"):
                    bad.append(f"{where} {name}")
                for keyword in node.keywords:
                    value = getattr(keyword.value, "value", None)
                    if (keyword.arg == "shell" or keyword.arg == "trust_remote_code") and value is not False:
                        bad.append(f"{where} {keyword.arg}")
    assert bad == []


# -- names and paths ----------------------------------------------------------------------------------------------

NAMES = [
    "../../etc/passwd",
    "org/../../../etc",
    "..\\..\\windows",
    "/etc/shadow",
    "/dev/zero",
    "~root/x",
    "~nobody-at-all/x",
    "org/model; touch owned",
    "org/$(touch owned)",
    "`touch owned`",
    "| touch owned",
    "org/mo\ndel",
    "org/model\x1b]0;x\x07",
    "a" * 100_000,
    "org/" + "../" * 5_000,
    "\u202eorg/model",
    "org/model%00",
    "file:///etc/passwd",
    "https://user:hunter2@example.org/x",
    TOKEN,
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:24]))
def test_names_stay_names(name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command follows, runs, prints raw or writes under a hostile name."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for argv in (["plan", name], ["count", name], ["init", name, "--machine", "h100"], ["fetch", name, "--to", "to"]):
        said = harmless(subprocess.CompletedProcess(argv, *run(*argv)), 2, 3)
        assert "hunter2" not in said
        assert TOKEN not in said
        assert "root:" not in said
    text = f"model: {json.dumps(name)}\nformat: bf16\nctx: 8Ki\nusers: 1\nmachine: {json.dumps(name)}\n"
    (work / "x.yaml").write_text(text, encoding="utf-8")
    said = harmless(subprocess.CompletedProcess([], *run("check", "x.yaml")), 2)
    assert TOKEN not in said
    assert list(tmp_path.rglob("*owned*")) == []
    assert {path.name for path in work.iterdir()} <= {"x.yaml", "to", "hub"}


def test_file_names_are_not_obeyed_by_the_terminal(tmp_path: Path) -> None:
    """Paths, fields, tensor and machine names with terminal sequences are shown escaped, whatever prints them."""
    if os.name != "posix":
        pytest.skip("such names are POSIX's")
    folder = tmp_path / f"m{EVIL}"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "x\\u001b]0;owned\\u0007"}')
    (tmp_path / f"b{EVIL}.yaml").write_text('"why\\e[8m": x\nmodel: "a\\e]0;x\\a"\n')
    (tmp_path / "machines.yaml").write_text('box:\n  memory: 1 GiB\n  title: "t\\e]0;x\\a"\n  "f\\e[8m": 1\n')
    header = json.dumps({f"t{EVIL}": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    for argv in (
        ["plan", str(folder)],
        ["check", f"b{EVIL}.yaml"],
        ["check", "."],
        ["machines", "--machines", "machines.yaml"],
        ["count", "model.safetensors"],
        ["plan", "Qwen/Qwen3-8B", "--machine", EVIL],
        [EVIL],
        ["plan", f"--{EVIL}"],
    ):
        harmless(limited(*argv, cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="1"), 0, 1, 2)
    title = 'box:\n  memory: 1 GiB\n  title: "t\\e]0;x\\a\\e[8m"\n'
    (tmp_path / "machines.yaml").write_text(title)
    harmless(limited("machines", "box", "--machines", "machines.yaml", cwd=tmp_path), 0)


def test_colours_of_ours_are_the_only_sequences(tmp_path: Path) -> None:
    """With colours forced on, what is left after our own colour codes holds no control character."""
    (tmp_path / "x.yaml").write_text('model: "Qwen/Qwen3-8B\\e[8m"\nctx: 8Ki\nusers: 1\nmachine: h100\n')
    done = limited("check", "x.yaml", cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="", TERM="xterm")
    assert "\x1b[31;1m" in done.stdout
    assert not CONTROL.search(re.sub(r"\x1b\[(?:0|31;1)m", "", done.stdout))


def test_pytest_is_not_obeyed_either(tmp_path: Path) -> None:
    """Budgets whose names, fields and texts hold terminal sequences fail in plain text, in every part of the output."""
    folder = tmp_path / "budgets"
    folder.mkdir()
    good = "model: Qwen/Qwen3-8B\nformat: bf16\nctx: 8Ki\nusers: 1\nmachine: h100\nexpect: {params: 1}\n"
    (folder / "a.yaml").write_text('why: "\\e]0;x\\a"\n' + good)
    (folder / "b.yaml").write_text(good + '"u\\e[31m": 1\n')
    (folder / "c.yaml").write_text(good.replace("h100", '"h\\e[8m\\u202e"').replace("Qwen/Qwen3-8B", '"a\\e[8m"'))
    if os.name == "posix":
        (folder / f"d{EVIL}.yaml").write_text(good)
    command = [sys.executable, "-m", "pytest", "--pyargs", "membudget.tests", "-p", "no:cacheprovider", "-rA", "-vv"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [*command, "-p", "membudget.pytest_plugin.plugin"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert "failed" in done.stdout
    assert not CONTROL.search(done.stdout + done.stderr)


@pytest.mark.parametrize(
    "file",
    ["../secret.safetensors", "/etc/x.safetensors", "..\\x.safetensors", "a/../../x.safetensors", "x\x00.safetensors"],
)
def test_an_index_cannot_leave_its_folder(file: str, tmp_path: Path) -> None:
    """weight_map names files beside it, nothing else: refused before anything is opened."""
    header = json.dumps({"w": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "secret.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": file}}))
    harmless(limited("count", "./m", cwd=tmp_path), 2)


def test_a_link_out_of_a_snapshot_shows_nothing(tmp_path: Path) -> None:
    """config.json that links to a secret: the error does not repeat what stands there."""
    (tmp_path / "token").write_text("sesame-open-123")
    snapshot = tmp_path / "hub" / "models--o--m" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "hf_quant_config.json", "model.safetensors.index.json"):
        (snapshot / name).symlink_to(tmp_path / "token")
    for argv in (["plan", "o/m"], ["count", "o/m"], ["plan", str(snapshot)]):
        assert "sesame" not in harmless(limited(*argv, cwd=tmp_path), 2, 3)


def test_the_lock_follows_no_link(tmp_path: Path) -> None:
    """A link that lies in wait in /tmp: its target is neither emptied nor made writable for all."""
    target = tmp_path / "authorized_keys"
    target.write_text("ssh-ed25519 ...")
    target.chmod(0o600)
    lock = tmp_path / "lock"
    lock.symlink_to(target)
    with pytest.raises(Busy, match="link"), machine_lock(str(lock)):
        pass
    assert target.read_text() == "ssh-ed25519 ..."
    assert target.stat().st_mode & 0o777 == 0o600


# -- bombs --------------------------------------------------------------------------------------------------------


def _gguf(tensors: int, keys: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def _key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


BOMBS: dict[str, tuple[str, bytes]] = {
    "gguf: 2^62 tensors": ("m.gguf", _gguf(2**62, 0)),
    "gguf: 2^62 keys": ("m.gguf", _gguf(0, 2**62)),
    "gguf: a text of 2^63 bytes": ("m.gguf", _gguf(0, 1, _key(b"a", 8, struct.pack("<Q", 2**63)))),
    "gguf: an array of 2^60 arrays": ("m.gguf", _gguf(0, 1, _key(b"a", 9, struct.pack("<IQ", 9, 2**60)))),
    "gguf: arrays in arrays": ("m.gguf", _gguf(0, 1, _key(b"a", 9, struct.pack("<IQ", 9, 1) * 100_000))),
    "gguf: 10 million empty keys": ("m.gguf", _gguf(0, 10**7, b"\0" * 10**7)),
    "safetensors: a header of 2^63 bytes": ("m.safetensors", struct.pack("<Q", 2**63 - 1) + b"{}"),
    "safetensors: nested lists": ("m.safetensors", struct.pack("<Q", 2 * 10**6) + b"[" * 10**6 + b"]" * 10**6),
    "safetensors: a shape beyond numbers": (
        "m.safetensors",
        (lambda h: struct.pack("<Q", len(h)) + h)(
            b'{"w":{"dtype":"F16","shape":[' + b"9" * 4000 + b'],"data_offsets":[0,2]}}'
        ),
    ),
    "config: nested lists": ("config.json", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "config: nested objects": ("config.json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "config: a million digits": ("config.json", b'{"model_type":"llama","vocab_size":' + b"9" * 10**6 + b"}"),
    "config: 1e999999": ("config.json", b'{"model_type":"llama","vocab_size":1e999999,"hidden_size":NaN}'),
    "config: huge sizes": (
        "config.json",
        json.dumps(
            {"model_type": "llama", "num_hidden_layers": 10**12, "hidden_size": 10**9, "num_attention_heads": 8}
        ).encode(),
    ),
    "config: 200 MB of spaces": ("config.json", b" " * (200 * 10**6)),
    "yaml: a billion laughs": (
        "x.yaml",
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (i + 1, i + 1, b",".join([b"*%c" % i] * 9)) for i in range(97, 120)),
    ),
    "yaml: an anchor again and again": ("x.yaml", b"a: &a " + b"y" * 30_000 + b"\nb: [" + b"*a," * 9_000 + b"]\n"),
    "yaml: nested lists": ("x.yaml", b"model: " + b"[" * 30_000 + b"]" * 30_000 + b"\n"),
    "yaml: nested keys": ("x.yaml", b"".join(b" " * i + b"a:\n" for i in range(340))),
    "yaml: 100 MB": ("x.yaml", b"model: x\n" * (11 * 10**6)),
    "yaml: one long key": ("x.yaml", b"? " + b"k" * 60_000 + b"\n: 1\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_small_and_soon(name: str, tmp_path: Path) -> None:
    """Counts, lengths, depths and repetitions beyond reason: one message within 1.5 GiB and 20 s of CPU."""
    pytest.importorskip("resource")
    file, content = BOMBS[name]
    (tmp_path / file).write_bytes(content)
    argv = ["check", file] if file == "x.yaml" else ["count", "." if file == "config.json" else file]
    harmless(limited(*argv, cwd=tmp_path), 2)
    if file == "x.yaml":
        harmless(limited("machines", "--machines", file, cwd=tmp_path), 2)


# -- logs ---------------------------------------------------------------------------------------------------------


def test_a_log_is_never_obeyed(tmp_path: Path) -> None:
    """A real log in which every line and figure is dressed: text and JSON come out plain, and without its secrets."""
    real = (ROOT / "fixtures" / "logs" / "cpu" / "0.32.0-err-maxlen-gemma3.log").read_text(encoding="utf-8")
    lines = [line + EVIL for line in real.splitlines()]
    secret = f"INFO 05-04 09:12:13 [utils.py:1] non-default args: {{'hf_token': '{TOKEN}', 'api_key': ['sesame-open']}}"
    lines[3:3] = [secret, f"INFO 05-04 09:12:13 [x.py:1] GET https://me:hunter2@hub/x Authorization: Bearer {TOKEN}"]
    (tmp_path / "x.log").write_text("\n".join(lines), encoding="utf-8")
    for more in ([], ["--json"]):
        said = harmless(limited("log", "x.log", *more, cwd=tmp_path), 0, 1)
        assert TOKEN not in said
        assert "hunter2" not in said
        assert "sesame" not in said
