"""Several machines, asked for in every way: spellings, layouts that are refused and what is advised, laws of ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget import formats, machines
from membudget.budgets.budget import Budget
from membudget.budgets.settings import Settings
from membudget.cli.main import main
from membudget.engines.vllm.parallel.cut import RankError
from membudget.engines.vllm.parallel.layouts import advice, allowed
from membudget.engines.vllm.parallel.ranks import KNOWN, Stage, stages
from membudget.formats import Format
from membudget.machines.file import MachineFileError, read
from membudget.model import Model, build
from membudget.planning.capacity import fits, max_users
from membudget.planning.ledger import predict
from membudget.planning.suggestions import applied
from tests_math.planning.buckets import summed

pytestmark = pytest.mark.math

MODELS = Path(__file__).parents[2] / "membudget" / "data" / "models"
#: One of each kind: grouped heads, few KV heads, MLA, experts, recurrent layers, a fused map.
NAMES = (
    "meta-llama--Llama-3.1-70B", "Qwen--Qwen2.5-7B", "deepseek-ai--DeepSeek-V3", "Qwen--Qwen3-30B-A3B",
    "Qwen--Qwen3.5-27B", "microsoft--Phi-4-mini-instruct",
)  # fmt: skip
_MADE: dict[str, Model] = {}


def advised_stages(model: Model, form: Format, tp: int, pp: int) -> tuple[Stage, ...]:
    """Every pipeline stage; a refusal ends with the sizes that are allowed."""
    try:
        return stages(model, form, tp, pp)
    except RankError as error:
        raise RankError(str(error), advice(model, form, tp, pp)) from None


def made(name: str) -> Model:
    """A shipped config's model, built once."""
    if name not in _MADE:
        raw = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
        _MADE[name] = build(raw.get("config", raw), name)
    return _MADE[name]


def budget(model: Model, form: str, tp: int, pp: int, users: int = 1, ctx: int = 4096) -> Budget:
    """A budget of tp x pp H100s."""
    return summed(
        "b", model, formats.get(form), "bf16", ctx, users, machines.get("h100-80gb"), Settings("vllm"),
        machines=tp * pp, tensor_parallel=tp, pipeline_parallel=pp,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["2x dgx-spark", "2xdgx-spark", "2 x dgx-spark", "2× dgx-spark", "2*dgx-spark", "2X dgx-spark", "02x dgx-spark"],
)
def test_every_spelling_of_two(text: str) -> None:
    """A number, x and a name mean so many machines, with and without spaces."""
    assert machines.counted(text) == (2, "dgx-spark")


@pytest.mark.parametrize("text", ["dgx-spark", "rtx 4090", "4090", "x", "2x", "", "1.5x h100", "-1x h100"])
def test_what_names_no_number(text: str) -> None:
    """Without a whole number before x it is a name, whatever it is."""
    assert machines.counted(text) == (1, text)


@pytest.mark.parametrize(
    "text",
    ["-1x dgx-spark", "1.5x dgx-spark", "2,000x dgx-spark", "+2x h100", "2x", "0x", "2 dgx-spark", "dgx-spark x2",
     "h100 x 2", "x h100", "2x 2x dgx-spark", "٢x dgx-spark"],
)  # fmt: skip
@pytest.mark.parametrize("command", [["plan", "Qwen/Qwen3-8B", "--machine"], ["fleet", "Qwen/Qwen3-8B", "--node"]])
def test_numbers_that_are_not_are_explained(command: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of machines that is none is wrong input, and the message shows how it is written."""
    *rest, option = command
    assert main([*rest, f"{option}={text}"]) == 2
    assert "Several are written as `2x dgx-spark`: a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0x h100", "0xh100", "9999999x h100"])
def test_too_few_and_too_many(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """None and millions are refused by every command that takes a number, with what is allowed."""
    for command in (["plan", "Qwen/Qwen3-8B", "--machine"], ["fleet", "Qwen/Qwen3-8B", "--node"]):
        assert main([*command, text]) == 2
        assert "machines are refused; allowed is 1 to" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2x-box:\n  memory: 24 GiB\n", 'box:\n  memory: 24 GiB\n  aliases: ["8x h100"]\n'])
def test_a_machine_is_not_called_as_several(text: str, tmp_path: Path) -> None:
    """A name that would be read as a number of machines could never be reached, so it is refused with its line."""
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(MachineFileError, match=r"m.yaml:\d: .*reads as several machines"):
        read(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    ("name", "form", "tp", "pp", "sizes"),
    [
        # 64 heads; 28 with 4 KV heads and a width of 2^9 x 37; 24 with 8 and a width of 2^13
        ("meta-llama--Llama-3.1-70B", "bf16", 3, 1, [1, 2, 4, 8, 16, 32, 64]),
        ("Qwen--Qwen2.5-7B", "bf16", 3, 1, [1, 2, 4]),
        ("microsoft--Phi-4-mini-instruct", "bf16", 5, 1, [1, 2, 4, 8]),
        ("meta-llama--Llama-3.1-70B", "bf16", 1, 81, [1, 2, 4, 8, 16, 32, 64]),
        # 48 value heads: a rank's 12 are no whole words of 8 four-bit numbers
        ("Qwen--Qwen3.5-27B", "awq", 4, 1, [1, 2]),
    ],
)  # fmt: skip
def test_a_refused_layout_names_those_that_are_allowed(
    name: str, form: str, tp: int, pp: int, sizes: list[int]
) -> None:
    """The message ends with the sizes that the model's heads and widths allow, and says nothing that fails again."""
    model, kind = made(name), formats.get(form)
    with pytest.raises(RankError, match=r"Allowed tensor_parallel_size: 1, 2") as error:
        advised_stages(model, kind, tp, pp)
    same, found = allowed(model, kind, tp, pp)
    assert found == sizes
    assert f"Allowed tensor_parallel_size: {', '.join(map(str, sizes))} (" in str(error.value)
    for pair in same:
        assert math.prod(pair) == tp * pp
        assert advised_stages(model, kind, *pair)


def test_a_family_that_is_not_known_gets_no_sizes() -> None:
    """Where no size would help none is advised."""
    with pytest.raises(RankError, match="planning 'gpt2' over several") as error:
        advised_stages(build({"model_type": "gpt2"}, "gpt2"), formats.get("bf16"), 3, 1)
    assert "Allowed" not in str(error.value)


def test_suggestions_skip_formats_that_a_rank_cannot_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that does not fit suggests what would: awq, whose words a rank of 4 would cut, is passed over."""
    command = ["plan", "Qwen/Qwen3.5-27B", "--machine", "4x rtx-4090", "--ctx", "256k", "--users", "9", "--offline"]
    assert main(command) == 1
    text = capsys.readouterr().out
    assert "it would fit with" in text
    assert "awq" not in text


@settings(deadline=None)
@given(
    name=st.sampled_from(NAMES),
    form=st.sampled_from(["bf16", "fp8", "awq", "gptq", "nvfp4"]),
    tp=st.integers(1, 16),
    pp=st.integers(1, 8),
)
def test_ranks_together_hold_the_model(name: str, form: str, tp: int, pp: int) -> None:
    """All ranks hold at least the model's bytes, every layer is on one stage; or a size is refused with its reason."""
    model, kind = made(name), formats.get(form)
    try:
        found = stages(model, kind, tp, pp)
    except RankError as error:
        refused = str(error)
        found = ()
    if not found:
        assert str(tp) in refused or "layers" in refused
        return
    assert sum(tp * kind.weigh(stage.model).total for stage in found) >= kind.weigh(model).total
    assert [layer for stage in found for layer in range(*stage.layers)] == list(range(len(model.caches)))
    alone = sum(spec.per_token for spec in model.caches)
    assert sum(tp * spec.per_token for stage in found for spec in stage.model.caches) >= alone


@settings(deadline=None)
@given(name=st.sampled_from(NAMES), ctx=st.integers(1, 2**17))
def test_more_machines_never_serve_fewer(name: str, ctx: int) -> None:
    """Doubling tensor parallelism never fits fewer users, where the sizes divide."""
    most = -1
    for tp in (2, 4, 8):
        try:
            users = max_users(budget(made(name), "bf16", tp, 1, ctx=ctx))
        except RankError:
            continue
        assert users >= most
        most = users


@settings(deadline=None)  # the first example of a layout builds its ranks
@given(
    name=st.sampled_from(NAMES),
    size=st.sampled_from([(2, 1), (4, 1), (1, 2), (2, 2)]),
    ctx=st.integers(1, 2**18),
    users=st.integers(1, 512),
)
def test_what_is_suggested_fits(name: str, size: tuple[int, int], ctx: int, users: int) -> None:
    """Every suggestion, applied to the same machines, fits."""
    asked = budget(made(name), "bf16", *size, users=users, ctx=ctx)
    ledger = predict(asked)
    for change in ledger.suggestions:
        assert fits(applied(asked, change)), change.text
    assert ledger.fits == fits(asked)


def test_init_writes_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`membudget init` on two machines writes a budget of two that is as it expects."""
    command = ["init", "meta-llama/Llama-3.1-70B", "--machine", "2x dgx-spark", "--offline", "--to", str(tmp_path)]
    assert main(command) == 0
    file = tmp_path / "llama-3.1-70b-bf16.2x-dgx-spark.yaml"
    assert "machine: 2x dgx-spark\n" in file.read_text()
    assert main(["check", str(file)]) == 0
    capsys.readouterr()
    command[3] = "3x dgx-spark"
    assert main(command) == 2
    assert "Allowed tensor_parallel_size" in capsys.readouterr().err


def test_explore_is_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page shows one machine a bar, and says what does several."""
    page = tmp_path / "e.html"
    assert main(["explore", "Qwen/Qwen3-8B", "--machine", "2x dgx-spark", "-o", str(page), "--offline"]) == 2
    assert "`membudget plan` takes several" in capsys.readouterr().err
    assert not page.exists()


def test_the_known_families_are_built() -> None:
    """The names here are of families whose ranks are known, so that the laws above are no empty promise."""
    assert {made(name).read_as for name in NAMES} <= KNOWN


def test_a_report_says_what_it_could_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a budget whose layout is refused is written, and the terminal says why it is empty."""
    file, page = tmp_path / "b.yaml", tmp_path / "r.html"
    file.write_text("model: meta-llama/Llama-3.1-70B\nformat: bf16\nctx: 1Ki\nusers: 1\nmachine: 3x dgx-spark\n")
    assert main(["report", str(file), "-o", str(page)]) == 2
    text = capsys.readouterr().out
    assert "b.yaml:5: machine: Total number of attention heads (64)" in text
    assert page.exists()
