"""The layouts of a node: the same answer as a plan of each, the fewest devices, what is refused, and both bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget import formats
from membudget.budgets.budget import Budget
from membudget.cli.main import main
from membudget.machines import Machine, get
from membudget.model import Model, build
from membudget.planning.fleet import CacheShape, FleetError, FleetLoad, for_model, for_params
from membudget.planning.fleet_text import NOT_LAID_OUT, verdict
from membudget.planning.node_layouts import MOST_DEVICES, Layout, every, fewest, nearest, smallest, tried
from membudget.units import GIB
from tests_math.planning.buckets import summed

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
Capture = pytest.CaptureFixture[str]
MODELS = Path(__file__).parents[2] / "membudget" / "data" / "models"
#: 64 heads and 8 KV heads; 28 and 4; a latent cache; experts.
NAMES = ("meta-llama--Llama-3.1-70B", "Qwen--Qwen2.5-7B", "deepseek-ai--DeepSeek-V3", "Qwen--Qwen3-30B-A3B")
_MADE: dict[str, Model] = {}
#: A latent cache: 61 layers of 512 + 64 numbers in 16 bits.
DEEPSEEK_TOKEN = 61 * (512 + 64) * 2
DEEPSEEK = ["deepseek-ai/DeepSeek-V3", "--ctx", "32k", "--offline"]


def made(name: str) -> Model:
    """A shipped config's model, built once."""
    if name not in _MADE:
        raw = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
        _MADE[name] = build(raw.get("config", raw), name)
    return _MADE[name]


def asked(name: str, users: int, ctx: int = 8192, machine: str = "h200") -> Budget:
    """A budget of one device, in the format that the config declares."""
    model = made(name)
    return summed("b", model, formats.of_config(model.config), "bf16", ctx, users, get(machine))


def fleet(capsys: Capture, *argv: str, code: int) -> str:
    """What `membudget fleet` prints, on one line, where it exits with `code`."""
    assert main(["fleet", *argv]) == code
    return " ".join(capsys.readouterr().out.split())


def document(capsys: Capture, *argv: str) -> Any:
    """The JSON of any command."""
    main([*argv, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_latent_cache_is_no_smaller_on_eight(capsys: Capture) -> None:
    """DeepSeek-V3 for 50 users on 8 x H200: tensor parallel 8 lacks what arithmetic says, pipeline parallel 8 fits."""
    found = document(capsys, "fleet", *DEEPSEEK, "--users", "50", "--node", "8xh200-141gb")
    by_size = {(one["tensor_parallel"], one["pipeline_parallel"]): one for one in found["layouts"]}
    cache = 50 * 32_768 * DEEPSEEK_TOKEN
    assert found["kv_cache"] == cache
    # each of 8 devices holds the whole cache beside an eighth of the weights, more than the 143,771 MiB it has
    least = cache + found["weights"] // 8 - 143_771 * 2**20
    assert least > 40 * GIB
    assert not by_size[8, 1]["fits"]
    assert -by_size[8, 1]["headroom"] >= least
    assert by_size[1, 8]["fits"]
    assert found["fits"]


def test_every_layout_is_what_a_plan_says(capsys: Capture) -> None:
    """Fits, headroom and users of each layout are those of `membudget plan` with its sizes; refusals have its words."""
    for name, node, users in (("meta-llama/Llama-3.1-70B", 5, 200), ("Qwen/Qwen2.5-7B", 8, 700)):
        found = document(capsys, "fleet", name, "--users", str(users), "--node", f"{node}xh200", "--offline")
        assert found["layouts"]
        for layout in found["layouts"]:
            tensor, pipeline = layout["tensor_parallel"], layout["pipeline_parallel"]
            plan = document(
                capsys, "plan", name, "--ctx", "8192", "--users", str(users), "--machine", f"{tensor * pipeline}x h200",
                "--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline), "--offline",
            )  # fmt: skip
            if layout["refused"] is None:
                assert {key: plan[key] for key in ("fits", "headroom", "max_users")}.items() <= layout.items()
            else:
                assert layout["refused"] in plan["error"]["message"]
                assert not layout["fits"]


def test_five_devices_that_five_do_not_divide(capsys: Capture) -> None:
    """64 heads are not divisible by 5, yet 5 stages of 16 layers hold 180 users of Llama-3.1-70B."""
    text = fleet(capsys, "meta-llama/Llama-3.1-70B", "--users", "180", "--node", "5xh200", "--offline", code=0)
    assert "at least 5 x h200-141gb (141.00 GB each)" in text
    assert "5 x h200-141gb by bytes as sold; 5 with a layout: tensor 1 x pipeline 5" in text
    assert "the fewest with a layout that fits: 5 devices, tensor 1 x pipeline 5" in text
    assert (
        "tensor 5: refused: Total number of attention heads (64) must be divisible by tensor parallel size (5)" in text
    )


def test_more_devices_than_the_bytes_say(capsys: Capture) -> None:
    """60 users of DeepSeek-V3 are within the bytes of 6 x H200 as sold; a layout that fits takes 7."""
    text = fleet(capsys, *DEEPSEEK, "--users", "60", "--node", "8xh200", "--device", "h200", code=0)
    assert "6 x h200-141gb by bytes as sold; 7 with a layout: tensor 1 x pipeline 7" in text


def test_within_the_bytes_and_no_layout(capsys: Capture) -> None:
    """Where the bound says yes and no layout of the node fits, neither verdict nor exit code says yes."""
    argv = [*DEEPSEEK, "--users", "60", "--node", "6xh200"]
    text = fleet(capsys, *argv, code=1)
    assert "refused: no layout of 6 x h200-141gb fits, though the bytes of one node would do: " in text
    assert "within one node" not in text
    found = document(capsys, "fleet", *argv)
    assert (found["fits"], found["within_bound"]) == (False, True)
    assert found["total"] <= found["node"]["bytes"] == 6 * 141 * 10**9
    assert not any(layout["fits"] for layout in found["layouts"])
    assert found["refusal"] == found["verdict"]


def test_neither_bytes_nor_layout(capsys: Capture) -> None:
    """A plan that exceeds the node in every way keeps the bound's sentence and says that no layout fits either."""
    text = fleet(capsys, "meta-llama/Llama-3.1-70B", "--users", "300", "--node", "8xh100", "--offline", code=1)
    assert "refused: exceeds the node: " in text
    assert "; no layout of 8 x h100-80gb fits either" in text


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["Qwen/Qwen3-32B", "--format", "q4_k_m", "--users", "100"], "planning q4_k_m weights over several"),
        (["Qwen/Qwen3-VL-32B-Instruct", "--users", "60"], "planning 'qwen3_vl_text' over several GPUs"),
    ],
)
def test_what_is_not_known_is_no_yes(argv: list[str], why: str, capsys: Capture) -> None:
    """Where nobody knows what a device would hold, one device is too small and the answer is no, with the reason."""
    text = fleet(capsys, *argv, "--node", "8xh100", "--offline", code=1)
    assert "no layout of 8 x h100-80gb is known to fit" in text
    assert "is known to fit" in text.partition("refused:")[0]  # of the device kinds too
    assert why in text.partition(" left out: ")[2]
    assert "known are" not in text


def test_stages_that_a_family_does_not_have() -> None:
    """vLLM runs mamba2 in no stages (`SupportsPP`): two of each tensor size are refused once, more are not asked."""
    model = build({"model_type": "mamba2", "num_hidden_layers": 8}, "mamba2")
    budget = summed("b", model, formats.get("bf16"), "bf16", 4096, 1, get("h100"))
    found = every(budget, 4)
    staged = [one for one in found if one.pipeline_parallel > 1]
    assert [(one.tensor_parallel, one.pipeline_parallel) for one in staged] == [(1, 2), (2, 2)]
    assert all("Pipeline parallelism is not supported for this model" in (one.refused or "") for one in staged)
    assert [one.tensor_parallel for one in found if one.refused is None] == [1, 2, 4]
    best, unknown = fewest(replace(budget, users=10**9), 8)
    assert best is None
    assert not unknown  # vLLM refuses: that much is known


def test_a_number_of_parameters_is_not_laid_out(capsys: Capture) -> None:
    """--params alone: the sentence says so, the exit code is the bound's, and sizes of 5 devices are those of 5."""
    base = ["--params", "70", "--layers", "80", "--heads", "64", "--kv-heads", "8"]
    text = fleet(capsys, *base, "--node", "5xh200", code=0)
    assert NOT_LAID_OUT in text
    assert "with a layout" not in text
    fleet(capsys, *base, "--node", "1xh200", code=1)
    found = document(capsys, "fleet", *base, "--node", "5xh200")
    assert (found["layouts"], found["with_a_layout"]) == (None, [])
    assert found["fits"] == found["within_bound"]


@pytest.mark.parametrize(
    ("node", "more", "sizes"),
    [("5xh200", [], [1, 2, 4, 5]), ("8xh200", [], [1, 2, 4, 8]), ("6xh200", [], [1, 2, 4, 6]), ("h200", [], [1]),
     ("8xh200", ["--tp", "16"], [1, 2, 4, 8, 16]), ("16xh100", [], [1, 2, 4, 8, 16])],
)  # fmt: skip
def test_sizes_that_the_node_can_have(node: str, more: list[str], sizes: list[int], capsys: Capture) -> None:
    """Only tensor-parallel sizes of up to the node's devices are listed, and those that were asked for."""
    base = ["--params", "70", "--layers", "80", "--heads", "64", "--kv-heads", "8", "--device", "b200", "--node", node]
    # 153.55 GB are one B200 of 180 GB: the bound's own count adds no size
    found = document(capsys, "fleet", *base, *more)
    assert [one["size"] for one in found["tensor_parallel"]] == sizes
    model = document(capsys, "fleet", "Qwen/Qwen3-8B", "--node", node, "--offline")
    assert max(one["tensor_parallel"] for one in model["layouts"]) == max(sizes if not more else [8])


@pytest.mark.parametrize(("text", "said"), [("h200", True), (" H200", True), ("1x h200", False), ("8xh200", False)])
def test_a_node_without_a_number_is_one(text: str, said: bool, capsys: Capture) -> None:
    """`--node h200` is one device, and the text and the JSON say so."""
    argv = ["Qwen/Qwen3-8B", f"--node={text}", "--offline"]
    words = "names no number: the node was taken to have 1 device; one of eight is --node 8xh200-141gb"
    assert (words in fleet(capsys, *argv, code=0)) == said
    found = document(capsys, "fleet", *argv)
    assert any(words in note for note in found["notes"]) == said
    assert found["node"]["devices"] == (8 if text.startswith("8") else 1)


@pytest.mark.parametrize("text", ["8x h200", "8xh200", "1x h200", "8 h200", "h200 x8", "0x h200", "8*h200"])
def test_a_device_is_one_kind(text: str, capsys: Capture) -> None:
    """--device with a number says that it takes one kind, and which option takes several."""
    assert main(["fleet", "Qwen/Qwen3-8B", f"--device={text}", "--offline"]) == 2
    error = capsys.readouterr().err
    assert "--device takes one kind of device" in error
    assert "--node 8xh200" in error
    assert "Several are written as" not in error


def test_a_device_that_is_not_known(capsys: Capture) -> None:
    """A name that is none says which option it was."""
    assert main(["fleet", "Qwen/Qwen3-8B", "--device", "h2000", "--offline"]) == 2
    assert "--device: no machine is called 'h2000'. Did you mean" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["70", "70B", " 70 B"])
def test_billions_are_named_once(text: str, capsys: Capture) -> None:
    """70 and 70B are 70B parameters."""
    found = document(capsys, "fleet", "--params", text, "--layers", "80", "--kv-heads", "8")
    assert found["model"] == "70B parameters"


def test_what_the_system_keeps_holds_no_model(tmp_path: Path, capsys: Capture) -> None:
    """36 GB with a Metal limit of 27 of 36 GiB give 36 - 9 x 1.073741824 = 26.34 GB; 28.46 GB take two."""
    file = tmp_path / "m.yaml"
    file.write_text("mac-36: {memory: 36 GiB, unified: true, gpu_limit: 27 GiB}\n", encoding="utf-8")
    more = ["--machines", str(file), "--device", "mac-36", "--offline"]
    text = fleet(capsys, "Qwen/Qwen3-8B", *more, "--node", "2xmac-36", code=0)
    assert "at least 2 x mac-36 (36.00 GB each as sold, less 9.66 GB that is left to the system: 26.34 GB)" in text
    assert "28.46 GB of the 52.67 GB of 2 x mac-36 beside what is left to the system" in text
    assert "36.00 GiB (38.65 GB) a device as its driver reports, less 9.00 GiB that is left to the system" in text
    found = document(capsys, "fleet", "Qwen/Qwen3-8B", *more, "--node", "1xmac-36")
    assert found["counts"] == [{"machine": "mac-36", "marketed": 36 * 10**9, "devices": 2, "reserve": 9 * GIB}]
    assert found["node"]["bytes"] == 36 * 10**9 - 9 * GIB
    assert not found["fits"]


def test_a_machine_that_gives_nothing() -> None:
    """A reserve of all that is sold is refused, as device and as node, with both figures."""
    full = Machine("full", 10 * GIB, 10 * GIB, True, 0, os_reserve=10 * GIB)
    for more in ({"devices": [full]}, {"node": (full, 2)}):
        with pytest.raises(FleetError, match=r"full: sold with 10,000,000,000 bytes, of which 10,737,418,240 are left"):
            for_params(1, CacheShape(2, 2, 64), FleetLoad(64, 1, **more))


def test_no_layout_of_very_many(model: Get) -> None:
    """Of a node of thousands, layouts of up to 128 devices are tried, and the words say so."""
    budget = asked("Qwen--Qwen2.5-7B", 1)
    found = every(budget, 10_000)
    assert max(layout.devices for layout in found) <= MOST_DEVICES == 128
    assert all(layout.pipeline_parallel <= 28 for layout in found)  # it has 28 layers
    wide = for_model(model("Qwen/Qwen2.5-7B"), formats.get("bf16"), FleetLoad(8192, 100_000, node=(get("t4"), 10_000)))
    assert wide.within_bound
    assert not wide.fits
    assert "no layout of up to 128 of the 10,000 x t4 fits" in verdict(wide)


def test_nothing_is_nearest_to_fit_where_all_are_refused() -> None:
    """No layout that is planned: no nearest and no smallest; else those by devices, then users."""
    refused = Layout(3, 1, "why")
    short, tight = Layout(2, 1, None, -5, 1), Layout(1, 2, None, -9, 1)
    few, many = Layout(4, 1, None, 1, 7, True), Layout(2, 2, None, 1, 8, True)
    assert nearest([refused]) is smallest([refused, short]) is None
    assert nearest([refused, tight, short]) == short
    assert smallest([Layout(8, 1, None, 9, 99, True), few, many]) == many


@settings(deadline=None, max_examples=25)
@given(name=st.sampled_from(NAMES), users=st.integers(1, 400), devices=st.integers(1, 9))
def test_laws_of_the_fewest(name: str, users: int, devices: int) -> None:
    """The fewest devices found by searching are those of all layouts; no layout stands twice; users agree with fits."""
    budget = asked(name, users)
    found = every(budget, devices)
    best, unknown = fewest(budget, devices)
    assert best == smallest(found)
    assert not unknown
    sizes = [(layout.tensor_parallel, layout.pipeline_parallel) for layout in found]
    assert len(sizes) == len(set(sizes))
    assert {tensor for tensor, _ in sizes} == set(range(1, devices + 1))
    for layout in found:
        assert layout.devices <= devices
        assert layout.fits == (layout.refused is None and layout.max_users >= users)
        assert layout == tried(budget, layout.tensor_parallel, layout.pipeline_parallel)


def test_another_engines_cache(capsys: Capture) -> None:
    """The layouts are vLLM's, so a cache dtype that only llama.cpp has is refused, as a plan refuses it."""
    assert main(["fleet", "Qwen/Qwen3-8B", "--kv-cache-dtype", "q8_0", "--offline"]) == 2
    assert "kv cache dtype q8_0 is llama.cpp's; vllm has" in capsys.readouterr().err
