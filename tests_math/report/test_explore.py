"""The page to play with: what it carries, that it computes what Python computes, and that nothing gets in or out."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from membudget import machines
from membudget.cli.main import main
from membudget.planning.ledger import predict
from membudget.report import explore, html
from tests_math.report.explore_plans import MODELS, START, answer, asked, choices, draw

pytestmark = pytest.mark.suite

RUN = """
const {page, plans} = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = plans.map((plan) => {
  const asked = {...plan, page, model: page.models[plan.model], machine: page.machines[plan.machine],
    ctx: BigInt(plan.ctx), users: BigInt(plan.users), batched: BigInt(plan.batched)};
  const {sums, total, capacity, headroom, maxUsers, fits, read} = Ledger.predict(asked);
  const figures = {...sums, total, capacity, headroom, max_users: maxUsers, fits, read};
  return Object.fromEntries(Object.entries(figures).map(([name, value]) => [name, String(value)]));
});
console.log(JSON.stringify(answers));
"""


def test_script_computes_what_predict_computes(tmp_path: Path) -> None:
    """500 random plans of 8 models on every machine: each sum to the byte."""
    found, known = choices(), list(machines.all_machines().values())
    document = explore.document(found, known, START)
    rng = random.Random(7)
    plans = [draw(document, rng) for _ in range(500)]
    _computes_the_same(tmp_path, document, plans)


def test_script_has_windows_and_shares(tmp_path: Path) -> None:
    """Tokens around every window, and shares around what a Spark's system is left."""
    document = explore.document(choices(), list(machines.all_machines().values()), START)
    spark = next(place for place, machine in enumerate(document["machines"]) if machine["name"] == "dgx-spark")
    base = {"machine": spark, "convention": "reported", "attention": "sdpa", "logits": "last", "share": None}
    plans: list[dict[str, Any]] = [
        {**base, "model": MODELS.index(name), "format": "q4_k_m", "kv": kv, "engine": "arithmetic", "ctx": ctx,
         "users": users, "batched": batched}
        for name in ("google/gemma-3-27b-it", "openai/gpt-oss-20b", "Qwen/Qwen3.5-9B")
        for kv in ("fp16", "q8_0")
        for ctx in (1, 128, 129, 1024, 1025, 8192, 300_000)
        for users, batched in ((1, 512), (64, 2048), (3, 100))
        if "error" not in document["models"][MODELS.index(name)]["formats"]["q4_k_m"]
    ]  # fmt: skip
    plans += [
        {**base, "model": 0, "format": form, "kv": "bf16", "engine": engine, "ctx": 8192, "users": users,
         "batched": 8192, "share": share}
        for form in ("bf16", "fp32")
        for engine in ("arithmetic", "transformers")
        for users in (1, 80, 5000)
        for share in (0.5, 0.91, 0.9178, 0.92, 0.95, 1.0)
    ]  # fmt: skip
    assert len(plans) > 150
    _computes_the_same(tmp_path, document, plans)


def test_page_opens_with_what_plan_says() -> None:
    """The first verdict of each machine, suggestions included, is the plan's own."""
    found, known = choices(), list(machines.all_machines().values())
    said = explore.document(found, known, START)["start"]["verdicts"]
    for machine in known:
        assert said[machine.name] == predict(explore.budget_of(found[0], machine, START)).verdict


def test_page_has_the_engines_that_are_a_sum() -> None:
    """vLLM's pool and llama.cpp's buffers are no sum of coefficients: `plan` has them."""
    assert list(explore.document(choices(MODELS[:1]), [], START)["engines"]) == ["arithmetic", "transformers"]


def _computes_the_same(tmp_path: Path, document: dict[str, Any], plans: list[dict[str, Any]]) -> None:
    """Each figure of each plan as Python has it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: the page's script runs in the browser test alone")
    found, known = choices(), list(machines.all_machines().values())
    script = tmp_path / "run.js"
    script.write_text(html.static("ledger.js") + RUN, encoding="utf-8")
    given = json.dumps({"page": document, "plans": plans})
    ran = subprocess.run([node, str(script)], input=given, capture_output=True, text=True, encoding="utf-8", check=True)
    for plan, said in zip(plans, json.loads(ran.stdout), strict=True):
        read = str(asked(found, known, plan).bytes_read)
        assert {**answer(found, known, plan), "read": read} == said, plan


def test_page_asks_for_nothing() -> None:
    """No address, no file, no frame is named anywhere; the policy allows the page's own script and style alone."""
    page = explore.render(choices(MODELS[:1]), machines.all_machines().values(), START)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]
    outside = set(re.findall(r"https?://[^\s\"'<]*", re.sub(r'<script type="application/json".*?</script>', "", page)))
    assert outside == {"http://www.w3.org/2000/svg"}, "the name of SVG, which nobody fetches"
    assert not re.search(r"<(?:link|img|iframe|object|embed)\b|\bsrc=|@import|url\(", page)


def test_script_never_reads_text_as_html() -> None:
    """Text from outside goes in as text: no script uses innerHTML and its like, nor runs a string."""
    for name in ("ledger.js", "curve.js", "explore.js"):
        script = html.static(name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
        assert "fetch(" not in script
        assert "XMLHttpRequest" not in script


def test_name_from_outside_stays_inert() -> None:
    """A model called like a closing tag closes nothing, in the title and in the data."""
    choice = choices(MODELS[:1])[0]
    choice.model.name = "</script><script>alert(1)</script>"
    page = explore.render([choice], machines.all_machines().values(), START)
    assert "alert(1)</script>" not in page
    assert "\\u003c/script\\u003e" in page
    assert "<title>&lt;/script&gt;" in page


def test_number_that_javascript_rounds_is_refused() -> None:
    """2^53 cannot travel as a number; the error says where it stands."""
    with pytest.raises(html.PageError, match=r"data\.sizes\[1\] is 9,007,199,254,740,992"):
        html.page("page.html", "x", styles=(), data={"sizes": [1, 2**53]})


def test_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is there, as long as the command says, and starts where the options say."""
    target = tmp_path / "page.html"
    words = ["explore", MODELS[0], MODELS[1], "--offline", "-o", str(target), "--users", "3", "--ctx", "4k", "--json"]
    assert main([*words, "--machine", "l4"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["bytes"] == target.stat().st_size
    assert said["models"] == list(MODELS[:2])
    data = _data(target.read_text(encoding="utf-8"))
    assert set(data["start"].pop("verdicts")) == {machine["name"] for machine in data["machines"]}
    assert data["start"] == {"ctx": 4096, "users": 3, "machines": ["l4"], "batched": 8192}
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["explore"], 2, "explore needs a MODEL"),
        (["explore", MODELS[0], "--offline", "-o", "."], 2, "is a folder"),
        (["explore", MODELS[0], "--offline", "--ctx", "0"], 2, "--ctx"),
        (["explore", MODELS[0], "--offline", "--format", "q9"], 2, "unknown format"),
        (["explore", MODELS[0], "--offline", "-o", "no/such/folder/x.html"], 2, "-o no/such/folder/x.html: cannot be"),
    ],
)
def test_command_refuses(words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be is an error that says what is wrong."""
    assert main(words) == code
    assert message in capsys.readouterr().err


def _data(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])
