"""Public start-ups of llama.cpp, Ollama and forks, read (fixtures/logs/llama_cpp/public.txt)."""

from __future__ import annotations

import pathlib
import re
from dataclasses import replace

import pytest

from membudget.cli.main import main
from membudget.engines.llama_cpp.logs import Log, explain, read_logs, settings_of
from membudget.engines.llama_cpp.plan import Server
from membudget.engines.llama_cpp.settings import Settings
from membudget.formats.gguf import gguf
from membudget.model import build

pytestmark = pytest.mark.math

MIB = 2**20
_TEXT = pathlib.Path("fixtures/logs/llama_cpp/public.txt").read_text()
CASES = {block.split("\n", 1)[0]: block.split("\n", 1)[1] for block in _TEXT.split("\n=== ")[1:]}
BUCKETS = ("weights", "kv_cache", "activations")


def parts(case: str) -> tuple[list[tuple[str, str]], Log]:
    """What is expected, and what is read."""
    lines = CASES[case].splitlines()
    expected = [tuple(line[2:].split(" = ", 1)) for line in lines if line.startswith("> ")]
    (log,) = read_logs("\n".join(line for line in lines if not line.startswith("> ")))
    return [(name, value) for name, value in expected], log


def figure(name: str, log: Log) -> str:
    """One figure as the case writes it."""
    prints = log.prints
    if name in ("nodes", "splits"):
        return str(getattr(prints, name))
    if name == "layers":
        return "{}/{}".format(*prints.offloaded or ())
    if name == "cache":
        return f"{prints.cache_bytes / MIB:.2f}"
    if name == "states":
        return f"{prints.state_bytes / MIB:.2f}"
    if name in BUCKETS:
        return f"{sum(place.get(name, 0) for place in log.places.values()) / MIB:.2f}"
    if name.startswith("projected "):
        return str(log.projected[name[10:]][1] // MIB)
    if name == "reduced":
        return "{} {}".format(*log.reduced or ())
    if name in ("cells", "type_k"):
        return str(getattr(prints.caches[0], name))
    if name == "failed":
        return " ".join(f"{one.device} {one.bytes}" for one in log.failures)
    if name.startswith("free "):
        return str(next(row.free for row in log.breakdown if row.device == name[5:]) // MIB)
    return log.facts.get(name) or prints.context[name]


def test_there_are_enough() -> None:
    """At least thirty-five."""
    assert len(CASES) >= 35


@pytest.mark.parametrize("case", CASES)
def test_a_public_start(case: str) -> None:
    """Every figure that the case names, and no failure that it does not."""
    expected, log = parts(case)
    for name, value in expected:
        if re.fullmatch(r"(?:[\d.]+|\*)(?: (?:[\d.]+|\*)){2}", value):
            found = log.places[name]
            for bucket, said in zip(BUCKETS, value.split(), strict=True):
                assert found.get(bucket, 0) / MIB == pytest.approx(0 if said == "*" else float(said), abs=0.01), name
        else:
            assert figure(name, log) == value, name
    assert bool(log.failures) == any(name == "failed" for name, _ in expected)


def test_colours_do_no_harm() -> None:
    """A terminal's log."""
    (log,) = read_logs("\x1b[34mload_tensors:\x1b[0m      CUDA0 model buffer size =  \x1b[1m100.50 MiB\x1b[0m")
    assert log.places == {"CUDA0": {"weights": round(100.5 * MIB)}}


def test_two_loads_of_ollama_are_two() -> None:
    """A log of a day."""
    one = 'msg="starting runner" cmd=x\nmsg="kv cache" device=CUDA0 size="936.0 MiB"\n'
    assert len(read_logs(one + one)) == 2


def test_nothing_of_llama_cpp_is_said() -> None:
    """Code 2, as for vLLM."""
    assert explain("INFO 08-24 vllm engine").code == 2


LINES = """\
load_tensors: offloaded 33/33 layers to GPU
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 8192
llama_context: n_ctx_seq     = 8192
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = enabled
llama_context: kv_unified    = false
llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB
llama_kv_cache: size = 1024.00 MiB (  8192 cells,  32 layers,  1/1 seqs), K (f16):  512.00 MiB, V (f16):  512.00 MiB
sched_reserve:      CUDA0 compute buffer size =   258.50 MiB
"""


def llama() -> Server:
    """The file that these lines are of."""
    return Server.written(build("membudget/data/models/meta-llama--Llama-3.1-8B.json"), gguf("q4_k_m", "Q4_K_M"))


def test_a_log_that_agrees_with_its_file() -> None:
    """Code 0, and a table of places."""
    found = explain(LINES, llama())
    assert (found.code, found.document["loads"][0]["differs"]) == (0, [])
    assert "CUDA0" in found.text
    assert "5,685.99 MiB" in found.text


def test_a_log_of_another_file_differs() -> None:
    """The arithmetic's figure is beside it."""
    other = Server.written(build("membudget/data/models/Qwen--Qwen3-0.6B.json"), gguf("q4_k_m", "Q4_K_M"))
    found = explain(LINES, other)
    assert found.code == 1
    assert "896.00 MiB" in found.document["loads"][0]["differs"][0]


def test_buffers_that_are_not_their_sum() -> None:
    """A line that is missing."""
    assert explain(LINES.replace("KV buffer size =  1024.00", "KV buffer size =   512.00")).code == 1


def test_what_would_fit() -> None:
    """A device of 5 GiB: fewer tokens, by the log alone and by the file."""
    text = "using device CUDA0 (RTX) - 5120 MiB free\n" + LINES
    (alone,) = explain(text).document["loads"]
    assert alone["would_help"][0].startswith("-c 3584")
    (known,) = explain(text, llama()).document["loads"]
    longest = int(re.search(r"-c (\d+): the longest", "\n".join(known["would_help"]))[1])  # type: ignore[index]
    assert 0 < longest < 3584
    assert replace(llama(), limits={"0": 5 * 2**30}).longest(_settings()) == longest


def _settings() -> Settings:
    (log,) = read_logs(LINES)
    return settings_of(log.prints)


def test_the_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """membudget log of a file that llama.cpp wrote."""
    path = tmp_path / "server.log"
    path.write_text(LINES)
    assert main(["log", str(path)]) == 0
    assert "33 of 33 layers on devices" in capsys.readouterr().out
