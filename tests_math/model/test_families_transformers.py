"""Every causal-LM type against transformers itself: default config, random configs, and the form it saves.

A third of the types a run, by the day; all of them with MEMBUDGET_FULL=1 (nightly).
"""

from __future__ import annotations

import datetime
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from membudget.model import build
from tests_math.model import family_reference as ref
from tests_math.model.random_configs import draw
from tests_math.model.test_families_real import MODELS, REFUSED

pytestmark = pytest.mark.transformers

pytest.importorskip("torch", reason="torch is not installed; `pip install membudget[transformers]`")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip(f"transformers {transformers.__version__}: configs are dataclasses since 5", allow_module_level=True)

from huggingface_hub.errors import StrictDataclassError  # noqa: E402  (comes with transformers)

COUNTED = [name for name in ref.causal_types() if name not in ref.TOWERS and name not in ref.UNBUILDABLE]
#: Types whose class cannot be built as it stands; random configs prove them.
NO_DEFAULT = {"dots1", "dbrx", "hunyuan_v1_dense", "hunyuan_v1_moe", "lfm2_moe", "ministral", "nemotron"}
#: A validator of its vision part refuses every draw; its text twin dots3_note_text is proven.
NO_DRAWS = {"dots3_note"}
#: Random configs of other nights that were wrong once; a night keeps its own in MEMBUDGET_CASES.
CASES = Path(__file__).parents[2] / "fixtures" / "cases"
THIRD = None if os.environ.get("MEMBUDGET_FULL") else datetime.date.today().toordinal() % 3


def _todays(names: list[str]) -> list[str]:
    return names if THIRD is None else names[THIRD::3]


@pytest.mark.parametrize("model_type", _todays([name for name in COUNTED if name not in NO_DEFAULT]))
def test_default_config(model_type: str) -> None:
    """The class's defaults, from a config.json that says nothing else."""
    _, under = ref.text_defaults(model_type)
    model = build({"model_type": model_type})
    assert model.count.params + ref.beyond(model) == ref.reference(model_type, {}, under, names=False).params


@pytest.mark.parametrize("model_type", _todays([name for name in COUNTED if name not in NO_DRAWS]))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_random_configs(model_type: str, data: st.DataObject) -> None:
    """Three random configs: parameters to the one, and every tensor that save_pretrained would write."""
    defaults, under = ref.text_defaults(model_type)
    overrides = draw(model_type, defaults, data.draw(st.randoms(use_true_random=False)))
    try:
        known = ref.reference(model_type, overrides, under)
    except (ValueError, TypeError, KeyError, AssertionError, RuntimeError, StrictDataclassError):
        assume(False)  # the class refuses this combination
    try:
        _holds(model_type, overrides, under, known)
    except AssertionError:
        _keep(model_type, overrides)
        raise


def _holds(model_type: str, overrides: dict[str, Any], under: str | None, known: Any) -> None:
    model = build(ref.raw(model_type, overrides, under))
    assert model.count.params + ref.beyond(model) == known.params
    if under is None and model_type not in ref.NAMES_DIFFER:
        assert ref.inventory(model.tensors) == known.tensors


def _keep(model_type: str, overrides: dict[str, Any]) -> None:
    """A config that fails, for `fixtures/cases`; hypothesis shrinks, so the last one kept is the smallest."""
    folder = os.environ.get("MEMBUDGET_CASES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"model_type": model_type, "overrides": overrides}, indent=2, default=str)
        Path(folder, f"{model_type}.json").write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_configs_that_failed_once(path: Path) -> None:
    """Random configs that some night found."""
    case = json.loads(path.read_text(encoding="utf-8"))
    _, under = ref.text_defaults(case["model_type"])
    _holds(case["model_type"], case["overrides"], under, ref.reference(case["model_type"], case["overrides"], under))


def _classes() -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = set(CONFIG_MAPPING.keys())
    found = {}
    for name, path in MODELS.items():
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["model_type"] in known and name not in REFUSED:
            found[name] = raw
    return found


@pytest.mark.parametrize("name", sorted(_classes()))
def test_hub_form_and_saved_form_agree(name: str, tmp_path: Any) -> None:
    """A config read and saved again by transformers 5 makes the same tensors and caches as the hub's file."""
    from transformers import AutoConfig

    if name in ref.READ_OTHERWISE:
        pytest.skip(ref.READ_OTHERWISE[name])
    raw = _classes()[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old key that is still read is no refusal
            config = AutoConfig.for_model(**{**raw, "quantization_config": None})
    except ref.refusals() as error:
        pytest.skip(f"transformers refuses this file: {type(error).__name__}: {str(error)[:120]}")
    saved = json.loads(config.to_json_string(use_diff=True))
    hub, again = build(raw, name), build(saved, name)
    assert [t for t in again.tensors if not _old(t)] == [t for t in hub.tensors if not _old(t)]
    assert again.caches == hub.caches


def _old(tensor: Any) -> bool:
    """What the file alone knows: MTP heads (dropped keys) and the version that saved it."""
    return tensor.role == "mtp" or ref.name_is_stale(tensor.name)
