"""Where torch and transformers are loaded: a stranger's config and checkpoint bring no code and no pickle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.transformers

ROOT = Path(__file__).parents[1]
TINY: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
#: Everything in a config that leads transformers to code of others: its own classes, kernels from the hub, a pipeline.
LURES: dict[str, Any] = {
    "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    "trust_remote_code": True,
    "attn_implementation": "evil/kernel",
    "_attn_implementation": "evil/kernel",
    "_attn_implementation_internal": "evil/kernel",
    "custom_pipelines": {"x": {"impl": "evil.Pipeline"}},
    "use_kernels": True,
}


def membudget(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """One command line, in a folder of a stranger."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "home")}
    command = [sys.executable, "-P", "-m", "membudget", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=300)


@pytest.mark.parametrize("model_type", ["llama", "evil"])
def test_a_trace_runs_no_code_of_the_model(model_type: str, tmp_path: Path) -> None:
    """Its class is transformers' own, whatever the config leads to; an unknown type is refused."""
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **LURES, "model_type": model_type}))
    for name in ("evil.py", "configuration_evil.py", "modeling_evil.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
    done = membudget("trace", ".", "--tokens", "32", "--json", cwd=tmp_path)
    assert not (tmp_path / "owned").exists()
    document = json.loads(done.stdout)
    if model_type == "llama":
        assert (done.returncode, document["attention"]) == (0, "sdpa"), document
    else:
        assert done.returncode == 2, document


def test_a_checkpoint_of_pickles_is_not_opened(tmp_path: Path) -> None:
    """pytorch_model.bin beside the config: refused where weights are loaded, and nothing in it runs."""
    from membudget.measure.models import checkpoint_model

    (tmp_path / "config.json").write_text(json.dumps(TINY))
    call = f"cbuiltins\nopen\n(V{tmp_path / 'owned'}\nVw\ntR."
    (tmp_path / "pytorch_model.bin").write_bytes(call.encode())
    with pytest.raises(OSError, match="safetensors"):
        checkpoint_model(str(tmp_path), "bf16", "cpu", "sdpa")
    assert not (tmp_path / "owned").exists()
