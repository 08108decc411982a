"""Where a model's config is found: path, shipped configs, the Hugging Face cache; and names from strangers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.checkpoint import CheckpointError, read_path
from membudget.checkpoint.reading import projectors_beside
from membudget.data import data_path
from membudget.model import ConfigError, Model
from membudget.sources import locate as module
from membudget.sources.locate import ModelNotFound, fixture_ids, locate
from membudget.sources.names import is_model_id
from tests_math.checkpoint.checkpoint_files import write_gguf, write_model, write_safetensors

pytestmark = pytest.mark.suite

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
ENVIRONMENT = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's own cache or asks the hub."""
    for key in ENVIRONMENT:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache"


def save(path: Path, content: Any = None) -> Path:
    """Write a JSON file and the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(LLAMA if content is None else content))
    return path


def cached(
    cache: Path, repo: str, *, commit: str = "a" * 40, ref: str | None = "main", name: str = "config.json"
) -> Path:
    """A config in a hub cache, as huggingface_hub lays it out."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    if ref:
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return save(folder / "snapshots" / commit / name)


def test_shipped_config_by_any_case() -> None:
    """A shipped id is found without any file, in any case."""
    for name in ("Qwen/Qwen3-8B", "qwen/qwen3-8b", "QWEN/QWEN3-8B"):
        found = locate(name)
        assert (found.kind, found.repo) == ("fixture", "Qwen/Qwen3-8B")
        assert found.config is not None
        assert found.config.integer("num_hidden_layers") == 36


def test_alias_of_a_shipped_config() -> None:
    """An alias (a fine-tune of the same shape) gives the config it stands for, and says whose."""
    aliases = json.loads(Path(data_path("models"), "ALIASES.json").read_text())
    for alias, model in aliases.items():
        found = locate(alias.upper())
        assert found.repo == model
        assert model in found.source


def test_every_shipped_config_is_found() -> None:
    """Each shipped id locates its own file, and files that are no configs are not ids."""
    ids = fixture_ids()
    assert len(ids) > 100
    for name in ids:
        assert locate(name).repo == name
    assert not any("SOURCES" in name or "ALIASES" in name for name in ids)


@pytest.mark.parametrize("where", ["m/config.json", "m", "other-name.json"])
def test_path_to_a_config(where: str, tmp_path: Path) -> None:
    """A folder with a config.json, the file itself, or a JSON file of any name."""
    save(tmp_path / "m" / "config.json")
    save(tmp_path / "other-name.json")
    found = locate(str(tmp_path / where))
    assert found.kind == "path"
    assert found.config is not None
    assert found.config.model_type == "llama"


def test_path_comes_before_a_shipped_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name with a model in it wins over the shipped id; an unrelated folder does not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    assert locate("Qwen/Qwen3-8B").kind == "fixture"
    save(tmp_path / "Qwen" / "Qwen3-8B" / "config.json")
    assert locate("Qwen/Qwen3-8B").kind == "path"


def test_hf_quant_config_beside_the_config(tmp_path: Path) -> None:
    """ModelOpt's hf_quant_config.json comes along, and must be an object."""
    save(tmp_path / "config.json")
    save(tmp_path / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}})
    assert locate(str(tmp_path)).hf_quant_config == {"quantization": {"quant_algo": "NVFP4"}}
    save(tmp_path / "hf_quant_config.json", [1])
    with pytest.raises(ConfigError, match=r"hf_quant_config\.json is a JSON object"):
        locate(str(tmp_path))


def test_gguf_file_folder_and_blob(tmp_path: Path, model: Callable[[str], Model]) -> None:
    """A .gguf file, a folder with one, and a GGUF under a name without suffix (Ollama's blobs)."""
    pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")
    llama = model("meta-llama/Llama-3.2-1B")
    path = write_model(tmp_path / "llama.gguf", llama)
    os.link(path, tmp_path / "sha256-00aa")
    write_safetensors(tmp_path / "mmproj-x.gguf", {})
    for name in (path, tmp_path, tmp_path / "sha256-00aa"):
        found = locate(str(name))
        assert found.kind == "gguf"
        assert found.config is not None
        assert found.config.model_type == "llama"
        assert found.checkpoint is not None
        assert found.checkpoint.elements == llama.count.params


def test_safetensors_file_with_and_without_config(tmp_path: Path) -> None:
    """A .safetensors file finds the config beside it; alone it has none."""
    path = write_safetensors(tmp_path / "model.safetensors", {"a": ("F32", (2,))})
    found = locate(str(path))
    assert (found.config, found.source, found.kind) == (None, str(path), "safetensors")
    assert locate(str(tmp_path)).kind == "safetensors"
    save(tmp_path / "config.json")
    found = locate(str(path))
    assert found.kind == "safetensors"
    assert found.config is not None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"no config\.json, \.safetensors or \.gguf file in it"),
        (["adapter_config.json"], r"a LoRA adapter's: pass the base model"),
        (["a.gguf", "b.gguf"], r"has 2 GGUF models; pass one of them: a\.gguf, b\.gguf"),
    ],
)
def test_folder_without_a_model(files: list[str], message: str, tmp_path: Path) -> None:
    """A folder that is no model says what is missing and what to pass."""
    (tmp_path / "m").mkdir()
    for name in files:
        (tmp_path / "m" / name).write_text("{}")
    with pytest.raises(ConfigError, match=message):
        locate(str(tmp_path / "m"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickle_is_refused(name: str, tmp_path: Path) -> None:
    """A pickle is never opened."""
    (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ConfigError, match=r"a pickle is not read"):
        locate(str(tmp_path / name))


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A named pipe in place of a file is an error, not a wait for a writer."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="not a regular file"):
        locate(str(tmp_path / "config.json"))
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_path(str(tmp_path / "config.json"))


def test_cache_by_ref(empty_cache: Path) -> None:
    """The snapshot that refs/main names, also where another lies beside it."""
    cached(empty_cache, "some/model", commit="b" * 40, ref=None)
    cached(empty_cache, "some/model")
    found = locate("some/model")
    assert (found.kind, found.repo) == ("cache", "some/model")
    assert found.path.endswith("a" * 40)
    assert locate("Some/Model").repo == "some/model"


def test_cache_without_a_ref(empty_cache: Path) -> None:
    """Fetched by commit: the only snapshot is taken, of two none."""
    cached(empty_cache, "some/model", ref=None)
    assert locate("some/model").kind == "cache"
    cached(empty_cache, "some/model", commit="b" * 40, ref=None)
    with pytest.raises(ModelNotFound):
        locate("some/model")


def test_shipped_config_comes_before_the_cache(empty_cache: Path) -> None:
    """The order of the look-up."""
    cached(empty_cache, "Qwen/Qwen3-8B")
    assert locate("Qwen/Qwen3-8B").kind == "fixture"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "{t}/a"}, "{t}/a"),
        ({"HUGGINGFACE_HUB_CACHE": "{t}/b"}, "{t}/b"),
        ({"HF_HOME": "{t}/c"}, "{t}/c/hub"),
        ({"XDG_CACHE_HOME": "{t}/d"}, "{t}/d/huggingface/hub"),
        ({"HOME": "{t}/e"}, "{t}/e/.cache/huggingface/hub"),
        ({"HF_HUB_CACHE": "{t}/a", "HF_HOME": "{t}/c"}, "{t}/a"),
        ({"HF_HOME": "$HOME/x", "HOME": "{t}"}, "{t}/x/hub"),
    ],
)
def test_cache_folder_is_huggingface_hubs(
    variables: dict[str, str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each environment variable moves the cache where huggingface_hub itself has it."""
    for key in ENVIRONMENT:
        monkeypatch.delenv(key, raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(key, value.format(t=tmp_path))
    expected = folder.format(t=tmp_path)
    assert module.cache_folder() == expected
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is in the [hub] extra")
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert theirs.stdout.strip() == expected


HOSTILE = [
    "../../etc/passwd",
    "..",
    "a/../b",
    "org/..",
    "org/../../x",
    "a/b/c",
    "org//name",
    "models--a--b",
    "/etc/shadow-not-there",
    "a\0b",
    "a\nb",
    "org/na\tme",
    "org/name\r",
    "-rf",
    "org/-x",
    ".hidden",
    "org/.git",
    "org\\name",
    "org/na me",
    "org/näme",
    "https://example.org/model",
    "org/name?x=1",
    "org/name#frag",
    "",
    "   ",
    "x" * 5000,
    "$HOME/x",
    "org/$(id)",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that leaves a folder, runs, or cannot be an id; the message is one short line."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")  # what lies in the folder above is nobody's model
    with pytest.raises(ConfigError) as caught:
        locate(name)
    assert not isinstance(caught.value, ModelNotFound)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@given(st.text(max_size=40))
def test_ids_never_leave_a_folder(name: str) -> None:
    """Whatever passes for an id makes one file name without separators, dots alone, or NUL."""
    if is_model_id(name):
        stem = name.replace("/", "--")
        assert os.path.basename(stem) == stem
        assert stem not in (".", "..")
        assert name.count("/") <= 1
        assert stem.isascii()
        assert stem.isprintable()


def test_ref_cannot_leave_the_cache(empty_cache: Path, tmp_path: Path) -> None:
    """A refs/main that is no commit is refused, and says what to do."""
    cached(empty_cache, "some/model", commit="a" * 40)
    save(tmp_path / "secret" / "config.json")
    (empty_cache / "models--some--model" / "refs" / "main").write_text("../../../../secret")
    with pytest.raises(ConfigError, match=r"is not a commit; delete the folder"):
        locate("some/model")


TOKEN = "hf_" + "A1b2" * 9


def test_access_token_is_never_shown() -> None:
    """A token typed in place of a model is neither printed nor looked for."""
    for name in (TOKEN, f"org/{TOKEN}", f"https://user:{TOKEN}@huggingface.co/x"):
        with pytest.raises(ConfigError, match="access token") as caught:
            locate(name)
        assert TOKEN not in str(caught.value)


def test_offline_says_where_it_looked(empty_cache: Path) -> None:
    """Offline: the places, near names, and what to do on a connected machine."""
    with pytest.raises(ModelNotFound) as caught:
        locate("Qwen/Qwen3-8")
    text = str(caught.value)
    assert str(empty_cache) in text
    assert "the shipped configs" in text
    assert "not asked: offline" in text
    assert "Near are: Qwen/Qwen3-8B" in text
    assert "`membudget fetch Qwen/Qwen3-8`" in text
    assert not caught.value.reachable


def test_name_without_its_organization() -> None:
    """A bare name is the one shipped model of that name, in any case; one that is near it is not guessed."""
    assert locate("qwen3-8b").repo == "Qwen/Qwen3-8B"
    with pytest.raises(ModelNotFound, match=r"Near are: Qwen/Qwen3-8B"):
        locate("Qwen3-8Bx", offline=True)


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not offline by choice but without a connection: the same error at once, no retries."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is in the [hub] extra")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for key in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(ModelNotFound, match=r"could not be reached: 127\.0\.0\.1"):
        locate("nobody/nothing", offline=False)


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the error says what to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match="pip install huggingface_hub"):
        locate("nobody/nothing", offline=False)


def test_import_is_light() -> None:
    """Looking up a shipped config imports neither huggingface_hub nor pathlib."""
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if p]; import membudget.sources.locate as l; "
        "l.locate('Qwen/Qwen3-8B'); print([m for m in ('huggingface_hub', 'pathlib', 'numpy') if m in sys.modules])"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=root,
                          env={"PYTHONPATH": root, "PATH": os.environ["PATH"]})  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_what_ships_lies_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ships lies in the package; what is missing is said with its place."""
    import membudget.data as data

    (tmp_path / "data" / "models").mkdir(parents=True)
    monkeypatch.setattr(data, "__file__", str(tmp_path / "data" / "__init__.py"))
    assert data.data_path("models") == str(tmp_path / "data" / "models")
    with pytest.raises(FileNotFoundError, match=r"data/budgets.*install membudget again"):
        data.data_path("budgets")


def test_projectors_beside_a_model(tmp_path: Path, model: Callable[[str], Model]) -> None:
    """The names that publishers give: ggml-org's, unsloth's, llama.cpp's own; none is taken for the model."""
    pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")
    write_model(tmp_path / "gemma-3-4b-it-Q4_K_M.gguf", model("meta-llama/Llama-3.2-1B"))
    for name in ("mmproj-F16.gguf", "gemma-3-4b-it-mmproj-f16.gguf", "MMPROJ-model.gguf"):
        write_gguf(tmp_path / name, "clip", {"general.type": "mmproj"}, {"v.patch_embd.weight": ("F32", (4,))})
    found = locate(str(tmp_path))
    assert found.path.endswith("gemma-3-4b-it-Q4_K_M.gguf")
    beside = projectors_beside(found.path)
    assert [name for name, _ in beside] == ["MMPROJ-model.gguf", "gemma-3-4b-it-mmproj-f16.gguf", "mmproj-F16.gguf"]
    assert beside[0][1] == (tmp_path / "mmproj-F16.gguf").stat().st_size
