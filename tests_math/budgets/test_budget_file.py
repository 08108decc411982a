# ruff: noqa: E501  (a table of errors, one a line)
from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from membudget.budgets.budget import Budget
from membudget.budgets.file import BudgetFile, NoBudgets, Sources, find, load, load_file, parse
from membudget.data.defaults import DEFAULT_OVERHEAD
from membudget.model import build
from membudget.planning.ledger import predict
from membudget.text.yaml_strict import MAX_BYTES
from membudget.text.yaml_strict import parse as parse_yaml

pytestmark = pytest.mark.math

GIB = 2**30
GOOD = """\
model: meta-llama/Llama-3.1-8B
format: bf16
kv_cache_dtype: bf16
ctx: 8Ki
users: 8
machine: rtx-4090
"""


def _read(text: str | bytes, folder: str = ".") -> BudgetFile:
    data = text.encode() if isinstance(text, str) else text
    budgets, problems = parse(data, "b.yaml", "b", folder, Sources())
    return BudgetFile("b.yaml", "b", budgets, problems)


def _one(text: str) -> Budget:
    file = _read(text)
    assert file.error == ""
    assert len(file.budgets) == 1
    return file.budgets[0]


def test_a_budget_has_what_its_file_says() -> None:
    """Every field arrives, in bytes and tokens, with the line it came from."""
    more = """\
engine: {vllm: {gpu_memory_utilization: 0.85, max_num_batched_tokens: 2Ki, block_size: 32}}
overhead: {cuda_context: 700 MiB}
os_reserve: 1.5 GiB
capacity: nominal
expect:
  params: 8_030_261_248
  fits: false
measure: {weights: within +64 MiB}
break: [{attention: eager, ctx: 16Ki, outcome: out_of_memory}]
ceiling: 20 GB
"""
    budget = _one(GOOD + more)
    assert (budget.id, budget.ctx, budget.users, budget.machine.name) == ("b", 8192, 8, "rtx-4090")
    engine = budget.engine
    assert (engine.name, engine.max_num_batched_tokens, engine.attention, engine.logits) == (
        "vllm",
        2048,
        "sdpa",
        "last",
    )
    assert (budget.engine.gpu_memory_utilization, budget.engine.options) == (0.85, {"block_size": 32})
    assert (budget.overhead, budget.os_bytes) == ({"cuda_context": 700 * 2**20}, 3 * GIB // 2)
    assert (budget.convention, budget.capacity, budget.ceiling) == ("nominal", 24 * GIB, 20_000_000_000)
    assert budget.expect["params"].value == 8_030_261_248
    assert budget.breaks == ({"attention": "eager", "ctx": 16384, "outcome": "out_of_memory"},)
    assert (budget.file, budget.where["expect.params"], budget.where["break[0].ctx"]) == ("b.yaml", 12, 15)


def test_what_is_left_out_has_its_default() -> None:
    """vLLM with a chunk of 8,192 tokens, 1.5 GiB of overhead, reported capacity, the config's own dtypes."""
    budget = _one("model: meta-llama/Llama-3.1-8B\nctx: 8Ki\nusers: 8\nmachine: rtx-4090\n")
    assert (budget.engine.name, budget.engine.max_num_batched_tokens) == ("vllm", None)
    assert budget.overhead is DEFAULT_OVERHEAD
    assert (budget.convention, budget.ceiling, budget.expect) == ("reported", None, {})
    assert budget.format.weigh(budget.model).total == 2 * 8_030_261_248


@pytest.mark.parametrize(
    ("model", "bits", "dtype"),
    [
        ("meta-llama/Llama-3.1-8B", 16, "bf16"),
        # its quantization_config: quant_algo FP8, kv_cache_scheme FP8
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", 8, "fp8"),
    ],
)
def test_auto_is_what_the_checkpoint_declares(model: str, bits: int, dtype: str) -> None:
    """Format and KV cache dtype left out are those of the published files, resolved when the file is read."""
    budget = _one(f"model: {model}\nctx: 8Ki\nusers: 1\nmachine: dgx-spark\n")
    assert round(budget.format.weigh(budget.model).bits_per_layer_weight, 2) == bits
    assert budget.kv_cache_dtype == dtype
    budget = _one(f"model: {model}\nkv_cache_dtype: auto\nctx: 8Ki\nusers: 1\nmachine: dgx-spark\n")
    assert budget.kv_cache_dtype == dtype


def test_a_cache_dtype_belongs_to_its_engine() -> None:
    """llama.cpp has q8_0 caches and vLLM has not."""
    text = GOOD.replace("kv_cache_dtype: bf16", "kv_cache_dtype: q8_0")
    assert "kv_cache_dtype: kv cache dtype q8_0 is llama.cpp's; vllm has" in _read(text).error
    assert _one(text + "engine: {llama_cpp: {}}\n").kv_cache_dtype == "q8_0"


def test_llama_cpp_splits_a_prompt_at_512() -> None:
    """n_ubatch is llama.cpp's chunk, 512 unless given."""
    assert _one(GOOD + "engine: {llama_cpp: {n_ubatch: 1024}}\n").engine.max_num_batched_tokens == 1024
    assert _one(GOOD + "engine: {llama_cpp: {}}\n").engine.max_num_batched_tokens == 512


def test_lists_expand_to_a_product_with_readable_ids() -> None:
    """Only what varies is in the id, in the order model, format, KV dtype, ctx, users, machine."""
    text = GOOD.replace("ctx: 8Ki", "ctx: [8Ki, 10_000]").replace("users: 8", "users: [1, 8]")
    names = [budget.id for budget in _read(text).budgets]
    assert names == ["b-8Ki-1user", "b-8Ki-8users", "b-10000-1user", "b-10000-8users"]
    text = GOOD.replace("rtx-4090", "[rtx-4090, dgx-spark]").replace("format: bf16", "format: [bf16, awq]")
    names = [budget.id for budget in _read(text).budgets]
    assert names == ["b-bf16-rtx-4090", "b-bf16-dgx-spark", "b-awq-rtx-4090", "b-awq-dgx-spark"]
    text = GOOD.replace("kv_cache_dtype: bf16", "kv_cache_dtype: [bf16, fp8]")
    text = text.replace("meta-llama/Llama-3.1-8B", "[meta-llama/Llama-3.1-8B, Qwen/Qwen3-8B]")
    names = [budget.id for budget in _read(text).budgets]
    assert names == ["b-Llama-3.1-8B-kv-bf16", "b-Llama-3.1-8B-kv-fp8", "b-Qwen3-8B-kv-bf16", "b-Qwen3-8B-kv-fp8"]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        # YAML 1.1's traps
        ("users: 8", "users: 010", 5, "users: 010 is octal to some YAML readers: write 10 without the leading 0"),
        ("users: 8", "users: 12:30", 5, "users: 12:30 is a number in base 60"),
        ("users: 8", "users: 1e3", 5, "users: 1e3 is text to some YAML readers and a number to others"),
        ("users: 8", "users: 0x10", 5, "users: 0x10 is a number to some YAML readers: write it in decimal digits"),
        ("users: 8", "users: 0o10", 5, "users: 0o10 is a number to some YAML readers"),
        ("users: 8", "users: +8", 5, "users: +8 is not a plain number"),
        ("users: 8", "users: .inf", 5, "users: .inf is not finite"),
        ("users: 8", "users: on", 5, "users: on is a boolean to some YAML readers and text to others"),
        ("format: bf16", "format: no", 2, "format: no is a boolean to some YAML readers"),
        ("users: 8", "users:", 5, "users: it is empty"),
        ("users: 8", "users: ~", 5, "users: it is empty"),
        ("users: 8", "users: 8\nusers: 9", 6, "'users' is written twice, first on line 5: keep one"),
        ("users: 8", "users: &a 8", 5, "anchor &a is not read"),
        ("users: 8", "users: *a", 5, "alias *a is not read"),
        ("users: 8", "users: !!int 8", 5, "tag tag:yaml.org,2002:int is not read"),
        ("users: 8", "users: !!python/object/apply:os.system [true]", 5, "tag tag:yaml.org,2002:python/object/apply"),
        ("users: 8", "users: 8\n---\nusers: 8", 6, "a second document begins here"),
        ("users: 8", "users: 8\n<<: {users: 9}", 6, "<<: unknown field"),
        ("users: 8", "users: 8\n\tctx: 1", 6, "indent with spaces"),
        ("users: 8", "users: 8\nwhy: a: b", 6, "text with ': ' in it stands in quotes"),
        # the schema
        ("users: 8", "users: -8", 5, "users: -8 is refused; allowed: a whole number from 1"),
        ("users: 8", "users: 0", 5, "users: 0 is refused; allowed: a whole number from 1"),
        ("users: 8", "users: 8.5", 5, "users: 8.5 is refused; allowed: a whole number"),
        ("users: 8", "users: true", 5, "users: true is refused; allowed: a whole number"),
        ("users: 8", "users: [8, 8]", 5, "users[1]: 8 is in the list twice"),
        ("users: 8", "users: []", 5, "users: a list of 0; allowed: 1 to 64 values"),
        ("users: 8", "users: {n: 8}", 5, "users: a mapping is refused"),
        ("users: 8", "user: 8", 5, "user: unknown field; allowed in a budget: why, model"),
        ("users: 8", "user: 8", 5, "did you mean users?"),
        ("users: 8\n", "", 1, "users: it is missing; allowed: a whole number from 1"),
        ("users: 8", "users: 32k", 5, "users: '32k' has two readings: write 32Ki for 32,768 or 32,000 in full"),
        ("ctx: 8Ki", "ctx: 8,192", 4, "ctx: '8,192' is refused"),
        ("ctx: 8Ki", "ctx: [8Ki, 8192]", 4, "ctx[1]: 8192 is in the list twice"),
        ("users: 8", "users: 8\nceiling: 40", 6, "ceiling: 40 has no unit: write 40 GiB, 40 GB or 40 B"),
        ("users: 8", "users: 8\nceiling: 40.5", 6, "ceiling: 40.5 has no unit"),
        ("users: 8", "users: 8\nceiling: 8G", 6, "ceiling: unknown unit 'G' in '8G': write GiB (x 1,073,741,824) or GB"),
        ("users: 8", "users: 8\nceiling: 0.3 GiB", 6, "ceiling: '0.3 GiB' is not a whole number of bytes"),
        ("users: 8", "users: 8\nexpect: {weights: 16.06}", 6, "expect.weights: 16.06 has no unit: write 16.06 GiB, 16.06 GB"),
        ("users: 8", "users: 8\nexpect: {weights: -5}", 6, "expect.weights: -5 is negative"),
        ("users: 8", "users: 8\nexpect: {fits: yes}", 6, "expect.fits: yes is a boolean to some YAML readers"),
        ("users: 8", "users: 8\nexpect: {fits: 'yes'}", 6, "expect.fits: 'yes' is refused; allowed: true or false"),
        ("users: 8", "users: 8\nexpect: {fits: True}", 6, "expect.fits: write true"),
        ("users: 8", "users: 8\nexpect: {kv_per_tokn: 1 B}", 6, "did you mean kv_per_token"),
        ("users: 8", "users: 8\nmeasure: {weights: 1%}", 6, "measure.weights: '1%' is not a tolerance; allowed: exact"),
        ("users: 8", "users: 8\ncapacity: reportd", 6, "capacity: 'reportd' is refused; allowed: reported or nominal; did you mean reported"),
        ("users: 8", "users: 8\nengine: {vllm: {}, transformers: {}}", 6, "engine: 2 given; allowed: exactly one of"),
        ("users: 8", "users: 8\nengine: {vlm: {}}", 6, "engine.vlm: unknown field; allowed in engine: one of vllm"),
        ("users: 8", "users: 8\nengine: {vllm: {gpu_memory_utilization: 40}}", 6, "allowed: a number above 0 and at most 1"),
        ("users: 8", "users: 8\nengine: {vllm: {gpu_memory_utilization: 0}}", 6, "allowed: a number above 0 and at most 1"),
        ("users: 8", "users: 8\nbreak: [{outcome: fits}]", 6, "break: it needs ceiling beside it"),
        ("users: 8", "users: 8\nbreak: [{logits: every}]\nceiling: 1 GiB", 6, "break[0].outcome: it is missing"),
        # names
        ("format: bf16", "format: bf61", 2, "format: unknown format 'bf61': did you mean bf16?"),
        ("kv_cache_dtype: bf16", "kv_cache_dtype: fp7", 3, "kv_cache_dtype: unknown kv cache dtype 'fp7'"),
        ("machine: rtx-4090", "machine: rtx-4091", 6, "machine: no machine is called 'rtx-4091'. Did you mean rtx-4090"),
        ("machine: rtx-4090", "machine: [h100, 2x dgx-sparc]", 6, "machine[1]: no machine is called 'dgx-sparc'"),
        ("model: meta-llama/Llama-3.1-8B", "model: ./nowhere", 1, "no such file or folder"),
    ],
)  # fmt: skip
def test_errors_name_line_field_and_what_is_allowed(old: str, new: str, line: int, said: str) -> None:
    """file:line, the field, what was wrong, what is allowed, the nearest spelling; and no budget is read."""
    file = _read(GOOD.replace(old, new))
    assert file.budgets == ()
    assert said in file.error
    assert f"b.yaml:{line}: " in file.error


def test_a_context_is_read_as_the_command_line_reads_it() -> None:
    """8k and 8Ki are 8,192 tokens; users have no such letter, which some would read as 1,000."""
    assert _one(GOOD.replace("8Ki", "8k")).ctx == _one(GOOD).ctx == 8192
    assert "two readings" in _read(GOOD.replace("users: 8", "users: 8k")).error


def test_all_errors_of_a_file_are_reported_in_order() -> None:
    """One round of corrections is enough."""
    text = GOOD.replace("bf16", "010").replace("8Ki", "8kB").replace("users: 8", "usrs: 8")
    assert [problem.line for problem in _read(text).problems] == [1, 2, 3, 4, 5]
    text = GOOD.replace("format: bf16", "format: bf61").replace("rtx-4090", "rtx-4091")
    assert [problem.line for problem in _read(text).problems] == [2, 6]


def test_quotes_make_text_of_a_trap() -> None:
    """A name that looks like a number or a boolean is fine in quotes."""
    assert _one(GOOD + "why: 'on'\n")
    assert _one(GOOD + "why: '12:30, every day'\n")


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (b"", 1, "the file is empty"),
        (b"# only a comment\n", 1, "the file is empty"),
        (b"- a\n- b\n", 1, "a list is refused; allowed: fields of a budget"),
        (b"just text", 1, "'just text' is refused"),
        (b"model: \xff\xfe", 1, "byte 0xff is not UTF-8 text"),
        (b"a: 1\nb: \x07\n", 2, "character U+0007 is not allowed in YAML"),
        (b"why: " + b"x" * MAX_BYTES, 1, "bytes are too many"),
        (b"[" * 2000, 1, "12 levels: too large"),
        (b"{a: " * 2000, 1, "12 levels: too large"),
        (b"users: [" + b"1, " * 20_000 + b"1]", 1, "5,000 values"),
        (b"? [a, b]\n: 1\n", 1, "a field's name is a word"),
        (b"users: " + b"9" * 5_000, 1, "is too large"),
        (b"a: [1, 2", 1, "not YAML"),
    ],
)
def test_hostile_files_end_in_one_clear_error(data: bytes, line: int, said: str) -> None:
    """Empty, binary, deep, long and broken files are refused quickly, without a traceback."""
    file = _read(data)
    assert said in file.error
    assert file.problems[0].line == line


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing that a file can hold makes the loader raise; a refusal always says why."""
    node, problems = parse_yaml(data, "b.yaml")
    assert node is not None or problems or not data.strip() or all(len(str(p)) < 500 for p in problems)
    file = _read(data)
    assert bool(file.problems) != bool(file.budgets)


@given(st.text("abmodelctx: [],{}'\"\n-#&*!|>%@`0189.eGiBon~", max_size=120))
def test_any_yaml_like_text_is_read_or_refused(text: str) -> None:
    """The same for text full of YAML's own characters, appended to a good budget."""
    file = _read(GOOD + text)
    assert bool(file.problems) != bool(file.budgets)


def test_a_model_path_is_relative_to_its_file(tmp_path: Path, raw_config) -> None:  # type: ignore[no-untyped-def]
    """`./my-model` is looked for beside the budget, wherever pytest runs."""
    import json

    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(raw_config("meta-llama/Llama-3.2-1B")))
    budget_file = tmp_path / "mine.yaml"
    budget_file.write_text(GOOD.replace("meta-llama/Llama-3.1-8B", "./my-model"))
    (budget,) = load_file(str(budget_file)).budgets
    assert budget.model.count.params == 1_235_814_400


def test_own_models_and_machines_are_found(tmp_path: Path, raw_config) -> None:  # type: ignore[no-untyped-def]
    """--models DIR finds DIR/org/name, --machines FILE a machine of one's own."""
    import json

    checkpoint = tmp_path / "models" / "ours" / "tiny"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps(raw_config("meta-llama/Llama-3.2-1B")))
    machines = tmp_path / "machines.yaml"
    machines.write_text("our-box: {memory: 20_000 MiB, nominal: 20 GiB, bandwidth: 500 GB/s, platform: cuda}\n")
    text = GOOD.replace("meta-llama/Llama-3.1-8B", "ours/tiny").replace("rtx-4090", "our-box")
    sources = Sources([str(machines)], str(tmp_path / "models"))
    budgets, problems = parse(text.encode(), "b.yaml", "b", ".", sources)
    assert problems == ()
    assert budgets[0].capacity == 20_000 * 2**20
    assert budgets[0].model.count.params == 1_235_814_400


def test_one_bad_file_leaves_the_others(tmp_path: Path) -> None:
    """A folder is read in order; hidden and other files are left alone."""
    for name, text in (("b.yaml", "users: 010"), ("a.yml", GOOD), ("c.yaml", GOOD), (".d.yaml", "x"), ("e.txt", "x")):
        (tmp_path / name).write_text(text)
    files = load([tmp_path])
    assert [(file.stem, len(file.budgets), bool(file.problems)) for file in files] == [
        ("a", 1, False),
        ("b", 0, True),
        ("c", 1, False),
    ]


def test_folders_in_a_folder_are_read(tmp_path: Path) -> None:
    """Budgets of every team are found, hidden folders and links to folders are not; what is found is said once."""
    for folder in (".", "team-a", "team-b/late", ".git", "empty"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        if folder != "empty":
            (tmp_path / folder / "chat.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [Path(path).relative_to(tmp_path).as_posix() for path in find([tmp_path])]
    assert found == ["chat.yaml", "team-a/chat.yaml", "team-b/late/chat.yaml"]
    assert len({file.stem for file in load([tmp_path])}) == 3


def test_ids_are_unique_across_folders(tmp_path: Path) -> None:
    """Two files of one name get as many of their folders as tell them apart; the same file twice is read once."""
    for folder in ("team-a", "team-b", "deep/team-a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "chat.yaml").write_text(GOOD)
    paths = [tmp_path / "team-a", tmp_path / "team-b", tmp_path / "deep/team-a", tmp_path / "team-a"]
    stems = [file.stem for file in load(paths)]
    assert len(set(stems)) == 3
    assert stems[1:] == ["team-b/chat", "deep/team-a/chat"]


def test_ids_do_not_tell_where_a_project_lies(tmp_path: Path) -> None:
    """Names alike in one folder differ by suffix; folders above those that differ are not in any id."""
    for name in ("a.yaml", "a.yml", "b.yaml", "sub/b.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(GOOD)
    assert [file.stem for file in load([tmp_path, tmp_path / "sub"])] == ["a.yaml", "a.yml", "b", "sub/b"]


def test_ids_keep_letters_of_any_script(tmp_path: Path) -> None:
    """Accents, Cyrillic, Chinese and Hindi stay readable and apart; a composed and a decomposed accent are one."""
    names = ("café", "чат", "预算", "हिन्दी", "a b!", "naïve")
    for name in names:
        (tmp_path / f"{name}.yaml").write_text(GOOD)
    assert {file.stem for file in load([tmp_path])} == {*names, "a-b"} - {"a b!"}


def test_what_is_no_file_is_a_problem_of_its_own(tmp_path: Path) -> None:
    """A pipe is not waited for, a folder and a dangling link are named; the file beside them is read."""
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "link.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "good.yaml").write_text(GOOD)
    os.mkfifo(tmp_path / "pipe.yaml")
    errors = {file.stem: file.error.rpartition(": ")[2] for file in load([tmp_path])}
    assert errors == {
        "folder": "it is a folder",
        "good": "",
        "link": "No such file or directory",
        "pipe": "it is a pipe or a device, no regular file",
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere", "no such file or folder"), ("empty", "no budget in it"), ("text.txt", "a budget is a .yaml file")],
)
def test_a_path_without_budgets_is_an_error(tmp_path: Path, name: str, said: str) -> None:
    """A mistyped path must not look like a suite that passes."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(NoBudgets, match=said):
        load([tmp_path / name])


def test_an_unreadable_file_is_a_problem_of_its_own(tmp_path: Path) -> None:
    """A dangling link named like a budget fails as that budget."""
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    (file,) = load([tmp_path])
    assert "cannot be read: No such file or directory" in file.error


def test_a_product_beyond_reason_is_refused() -> None:
    """Three long lists in one file are a mistake, and do not take minutes to notice."""
    many = ", ".join(str(number) for number in range(1, 61))
    file = _read(
        GOOD.replace("8Ki", f"[{many}]").replace("users: 8", f"users: [{many}]").replace("rtx-4090", "[l4, h100]")
    )
    assert "expand to 7,200 budgets; at most 4,096 are read" in file.error


def test_two_hundred_budgets_are_read_at_once(tmp_path: Path) -> None:
    """A model is parsed once, however many budgets name it."""
    for number in range(200):
        (tmp_path / f"{number}.yaml").write_text(GOOD)
    assert len({id(file.budgets[0].model) for file in load([tmp_path])}) == 1


def test_weight_files_give_their_own_bytes(tmp_path: Path) -> None:
    """A budget on a folder with weights needs no format: the headers' bytes are the weights."""
    shape = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "tie_word_embeddings": True}
    config = {**shape, **heads, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {
        name: np.zeros(extent, np.float16)
        for tensor in build(config, "tiny").tensors
        for name, extent in tensor.expand()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    text = "model: ./\nctx: 128\nusers: 1\nmachine: rtx-4090\n"
    budgets, problems = parse(text.encode(), "budget.yaml", "budget", str(tmp_path), Sources())
    assert not problems
    assert predict(budgets[0]).weights == sum(tensor.nbytes for tensor in tensors.values())
