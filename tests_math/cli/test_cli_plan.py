"""`membudget plan` and `membudget count`: exact keys, exit codes and known answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from membudget.units import GIB

pytestmark = pytest.mark.suite

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., tuple[int, Any]]

PLAN_KEYS = {
    "weights",
    "kv_cache",
    "activations",
    "overhead",
    "total",
    "capacity",
    "headroom",
    "fits",
    "max_users",
    "max_ctx",
    "kv_per_token",
    "lines",
}


def test_plan_json_has_the_documented_keys(ask: Ask) -> None:
    """Bytes are integers, the four buckets add up, every line has its why."""
    code, plan = ask("plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "32k", "--users", "8")
    assert code == 0
    assert set(plan) >= PLAN_KEYS
    buckets = [plan[name] for name in ("weights", "kv_cache", "activations", "overhead")]
    assert all(type(size) is int for size in [*buckets, plan["total"], plan["capacity"], plan["headroom"]])
    assert sum(buckets) == plan["total"]
    # what the share of the device has left beside the operating system's part
    assert plan["limit"] - (plan["total"] - 10 * GIB) == plan["headroom"]
    assert plan["ctx"] == 32_768
    assert plan["fits"] is True
    # 8,190,735,360 parameters x 2 bytes, a rotary table of 10 MiB, and what the allocator rounds up
    assert 16_381_470_720 < plan["weights"] < 16_381_470_720 + 32 * 2**20
    assert plan["kv_per_token"] == 2 * 36 * 8 * 128 * 2
    assert plan["kv_cache"] == 8 * 32_768 * plan["kv_per_token"]
    assert all(line["why"] and line["bucket"] and type(line["bytes"]) is int for line in plan["lines"])


def test_plan_known_answers_on_cards(ask: Ask) -> None:
    """8B bf16 at 8K by the sum: an H100 takes 62 users; an RTX 4090 misses 8 by 1.4 GiB and tops out at 6."""
    model = "meta-llama/Llama-3.1-8B"
    base = ("--format", "bf16", "--ctx", "8192", "--users", "8", "--engine", "arithmetic")
    _, h100 = ask("plan", model, "--machine", "h100-80gb", *base)
    assert h100["max_users"] == 62
    code, gaming = ask("plan", model, "--machine", "rtx-4090", *base)
    assert code == 1
    assert gaming["max_users"] == 6
    assert round(-gaming["headroom"] / GIB, 1) == 1.4
    assert gaming["broken_by"] == "kv_cache"


@pytest.mark.parametrize("capacity", ["reported", "nominal"])
def test_plan_spark_takes_about_a_hundred_users(ask: Ask, capacity: str) -> None:
    """8B bf16 at 8K on a DGX Spark: about 100 users, a step of about 0.45 s, about 2 tokens/s each."""
    _, plan = ask(
        "plan", "meta-llama/Llama-3.1-8B", "--machine", "dgx-spark", "--ctx", "8k", "--users", "100",
        "--capacity", capacity, "--engine", "arithmetic",
    )  # fmt: skip
    assert 93 <= plan["max_users"] <= 101
    assert plan["decode_upper_bound"]["step_seconds"] == pytest.approx(0.45, abs=0.02)
    assert plan["decode_upper_bound"]["tokens_per_second_per_user"] == pytest.approx(2.2, abs=0.2)


def test_plan_of_several_machines_is_one_document(ask: Ask) -> None:
    """Several machines give `plans`, one object each; the code is 1 unless all of them fit."""
    code, document = ask(
        "plan", "meta-llama/Llama-3.1-70B", "--ctx", "8k", "--machine", "mi300x", "--machine", "rtx-4090"
    )
    assert code == 1
    assert document["fits"] is False
    assert [plan["machine"] for plan in document["plans"]] == ["mi300x", "rtx-4090"]
    assert [plan["fits"] for plan in document["plans"]] == [True, False]
    assert all(set(plan) >= PLAN_KEYS for plan in document["plans"])


def test_plan_without_a_machine_shows_a_few(ask: Ask) -> None:
    """Three well-known machines; 0 as soon as one of them fits."""
    code, document = ask("plan", "meta-llama/Llama-3.1-70B", "--format", "q4_k_m")
    names = [plan["machine"] for plan in document["plans"]]
    assert names[-3:] == ["dgx-spark", "h100-80gb", "rtx-4090"]
    assert code == 0
    assert ask("plan", "meta-llama/Llama-3.1-405B", "--format", "bf16")[0] == 1


def test_plan_defaults_are_said(run: Run) -> None:
    """The default context and every assumption stand in the notes."""
    code, out, _ = run("plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark")
    assert code == 0
    assert "8,192 tokens of context, because --ctx is not given" in out
    assert "assumed until it is measured" in out
    assert "an upper bound" in out
    assert "GiB" in out
    assert " GB" in out


def test_plan_warns_beyond_the_models_context(run: Run, ask: Ask) -> None:
    """A context beyond max_position_embeddings is planned, and said."""
    _, out, _ = run("plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "64k")
    assert "more than the model's max_position_embeddings 40,960" in out
    _, plan = ask("plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "64k")
    assert plan["model_max_ctx"] == 40_960


def test_plan_why_prints_every_formula(run: Run) -> None:
    """--why shows each line's formula with its numbers."""
    _, out, _ = run("plan", "meta-llama/Llama-3.1-8B", "--machine", "h100-80gb", "--why", "--engine", "arithmetic")
    assert "131,072 bytes" in out
    assert "536,870,912 B" in out


def test_plan_sees_fp8_and_eager(ask: Ask) -> None:
    """An fp8 cache is half; eager attention at 16K holds ten bytes a score."""
    base = ["plan", "meta-llama/Llama-3.1-8B", "--machine", "h200", "--ctx", "16k"]
    _, bf16 = ask(*base)
    _, fp8 = ask(*base, "--kv-cache-dtype", "fp8")
    assert 2 * fp8["kv_cache"] == bf16["kv_cache"]
    sums = ("--engine", "arithmetic", "--attention", "eager", "--max-num-batched-tokens", "16k")
    _, eager = ask(*base, *sums)
    assert eager["activations"] > 32 * 16_384**2 * 10


def test_a_share_that_eats_into_the_systems_does_not_fit(ask: Ask) -> None:
    """vLLM's own default of 0.92 leaves 9.74 of a Spark's 10 GiB; 0.91 leaves them; a card keeps none for it."""
    base = ("plan", "Qwen/Qwen3-8B", "--ctx", "8k", "--gpu-memory-utilization")
    code, plan = ask(*base, "0.92", "--machine", "dgx-spark")
    # 130,663,165,952 B x 0.08 = 9.735 GiB; (130,663,165,952 - 10 x 2^30) / 130,663,165,952 = 0.9178
    assert code == 1
    assert "leaves 9.74 GiB of the operating system's 10.00 GiB" in plan["verdict"]
    assert plan["changes"][0]["values"] == {"gpu_memory_utilization": 0.91}
    for share, machine in (("0.91", "dgx-spark"), ("0.99", "h100")):
        assert ask(*base, share, "--machine", machine)[0] == 0


def test_plan_utilization_limits(ask: Ask) -> None:
    """gpu_memory_utilization makes its own limit, and it is in the document."""
    _, plan = ask("plan", "Qwen/Qwen3-8B", "--machine", "h100", "--gpu-memory-utilization", "0.5")
    assert 0 < plan["limit"] < plan["capacity"] * 0.51


def test_plan_takes_a_config_and_a_folder(ask: Ask, tmp_path: Path, raw_config: Callable[[str], Any]) -> None:
    """A config.json, and the folder it lies in, plan as the id does."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config("Qwen/Qwen3-8B")), encoding="utf-8")
    _, by_id = ask("plan", "Qwen/Qwen3-8B", "--machine", "h100")
    for name in (str(path), str(tmp_path)):
        _, plan = ask("plan", name, "--machine", "h100")
        assert plan["total"] == by_id["total"]
        assert plan["source"] == name


def test_plan_as_another_family(ask: Ask, tmp_path: Path, raw_config: Callable[[str], Any]) -> None:
    """--as reads a config whose model_type no recipe knows as one that is built alike."""
    raw = {**raw_config("meta-llama/Llama-3.1-8B"), "model_type": "llama_of_ours"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    code, error = ask("count", str(path))
    assert (code, error["error"]["type"]) == (2, "UnknownModelType")
    counted = ask("count", str(path), "--as", "llama")[1]
    assert counted["params"] == 8_030_261_248
    assert counted["unproven"] is True


def test_count_llama(ask: Ask) -> None:
    """Llama-3.1-8B by role, as the published shapes add up."""
    code, count = ask("count", "meta-llama/Llama-3.1-8B")
    assert code == 0
    assert (count["params"], count["active"], count["checkpoint"]) == (8_030_261_248,) * 3
    assert count["by_role"] == {
        "embed": 525_336_576,
        "attn": 32 * 41_943_040,
        "mlp": 32 * 176_160_768,
        "norms": 32 * 8_192 + 4_096,
        "lm_head": 525_336_576,
        "other": 0,
    }
    (layers,) = count["layers"]
    assert (layers["first"], layers["last"], layers["params"]) == (0, 31, 41_943_040 + 176_160_768 + 8_192)
    assert layers["cache_elements_per_token"] == 2 * 8 * 128


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("meta-llama/Llama-3.1-70B", 70_553_706_496),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
    ],
)
def test_count_known(ask: Ask, name: str, params: int) -> None:
    """Published totals."""
    _, count = ask("count", name)
    assert count["params"] == params
    assert sum(count["by_role"].values()) == params


def test_count_sums_its_layers(ask: Ask) -> None:
    """Layers and what stands outside them make the whole, for a dense-then-sparse mixture."""
    _, count = ask("count", "Qwen/Qwen3-30B-A3B", "--tensors")
    inside = sum(group["params"] * (group["last"] - group["first"] + 1) for group in count["layers"])
    outside = [t for t in count["tensors"] if not any(part.isdecimal() for part in t["name"].split("."))]
    rest = 0
    for tensor in outside:
        size = tensor["copies"]
        for extent in tensor["shape"]:
            size *= extent
        rest += size
    assert inside + rest == count["params"]


def test_sizes_that_a_config_leaves_to_its_class_are_said(tmp_path: Path, ask: Ask) -> None:
    """A file without hidden_size is read as transformers reads it, and the plan says which sizes are the class's."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 12}', encoding="utf-8")
    plan = ask("plan", str(path), "--machine", "l4")[1]
    assert plan["assumed"]["hidden_size"] == 4096
    assert any("not in the config.json" in note and "vocab_size 32,000" in note for note in plan["notes"])
    assert "num_hidden_layers" not in plan["assumed"]


def test_a_part_of_the_weights_is_refused(
    tmp_path: Path, ask: Ask, raw_config: Callable[[str], dict[str, Any]]
) -> None:
    """A folder whose files hold one tensor of many is no model of 0 bytes that fits everywhere."""
    (tmp_path / "config.json").write_text(json.dumps(raw_config("meta-llama/Llama-3.2-1B")), encoding="utf-8")
    save_file({"model.norm.weight": np.zeros(2048, np.float16)}, tmp_path / "model.safetensors")
    code, said = ask("plan", str(tmp_path), "--machine", "l4")
    assert code == 2
    assert "not in the files" in said["error"]["message"]
    assert ask("plan", str(tmp_path), "--machine", "l4", "--format", "bf16")[0] == 0


def test_a_plan_of_unified_memory_names_the_share(ask: Ask) -> None:
    """Where memory is the system's too, the plan assumes a share that leaves it its part, and the command has it."""
    asked = ("plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "32k", "--users", "8")
    _, plan = ask(*asked)
    (note,) = [note for note in plan["notes"] if "--gpu-memory-utilization" in note]
    assert "assumes --gpu-memory-utilization 0.83 in place of vLLM's own 0.92" in note
    assert "--gpu-memory-utilization 0.83" in plan["command"]
    for more in (["--gpu-memory-utilization", "0.83"], ["--engine", "llama_cpp"]):
        assert not [note for note in ask(*asked, *more)[1]["notes"] if "in place of" in note]
    _, card = ask("plan", "Qwen/Qwen3-8B", "--machine", "h100-80gb")
    assert not [note for note in card["notes"] if "in place of" in note]


def test_this_machine_says_what_is_available_now(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is of the whole memory; where others hold most of it, that is said."""
    from membudget.host import detect
    from membudget.machines import Machine

    box = Machine("this-machine", 128 * GIB, 128 * GIB, True, 1, os_reserve=10 * GIB, title="NVIDIA GB10")
    monkeypatch.setattr(detect, "_found", box)
    monkeypatch.setattr("membudget.host.system.available", lambda: 22 * GIB)
    _, plan = ask("plan", "Qwen/Qwen3-8B", "--machine", "this-machine")
    (note,) = [note for note in plan["notes"] if "available now" in note]
    assert note.startswith("this-machine: 22.00 GiB (23.62 GB) of its memory are available now")
    monkeypatch.setattr("membudget.host.system.available", lambda: 118 * GIB)
    _, plan = ask("plan", "Qwen/Qwen3-8B", "--machine", "this-machine")
    assert not [note for note in plan["notes"] if "available now" in note]


def test_unified_memory_without_a_reserve_is_said(ask: Ask, tmp_path: Path) -> None:
    """An own machine whose memory is the system's too, and that leaves it nothing."""
    table = tmp_path / "mine.yaml"
    table.write_text("box: {memory: 100 GiB, unified: true, bandwidth: 100 GB/s, source: mine}\n", encoding="utf-8")
    _, plan = ask("plan", "Qwen/Qwen3-8B", "--machine", "box", "--machines", str(table))
    assert any("give it an os_reserve" in note for note in plan["notes"])


def test_plan_takes_sizes_of_ones_own(ask: Ask) -> None:
    """What a person measured replaces what is assumed: overhead, the system's part, the memory that there is."""
    words = ("plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "8k")
    _, plain = ask(*words)
    _, mine = ask(*words, "--overhead", "2GiB", "--os-reserve", "8 GiB", "--capacity", "100GiB")
    assert plain["overhead"] > 10 * 2**30
    assert mine["overhead"] == 2 * 2**30 + 8 * 2**30
    assert mine["capacity"] == 100 * 2**30
    assert not any("assumed until it is measured" in note for note in mine["notes"])
    assert mine["weights"] == plain["weights"]


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--capacity", "ten", "or one of reported, nominal"),
        ("--overhead", "2", "it has no unit"),
        ("--os-reserve", "0GiB", "allowed is a whole number from 1"),
    ],
)
def test_sizes_that_are_refused(run: Callable[..., tuple[int, str, str]], option: str, text: str, said: str) -> None:
    """A size without its unit, or none, names its option and what is allowed."""
    code, _, error = run("plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", option, text)
    assert code == 2
    assert option in error
    assert said in error
