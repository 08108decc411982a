"""Asks an installed vLLM how it would carve its pool: no GPU, no weights, its own Python and process.

The independent reference of `pool`: vLLM's own model class is built on the meta device,
its own `get_kv_cache_spec` and config functions answer.  One call asks many cases.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from membudget.engines.vllm.pool.plan import Pool
from membudget.errors import MembudgetError

#: Architecture of the text model inside a multimodal checkpoint, by its model_type: vLLM
#: would otherwise ask for image processors that a bare config.json does not bring.
TEXT_ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "ministral3": "MistralForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
ENV = "MEMBUDGET_VLLM"


class OracleError(MembudgetError):
    """vLLM is not there, could not be asked, or refused every case: the text ends with its own output."""


class OracleRow(NamedTuple):
    """One answered case, in vLLM's own figures; None where this version does not tell.

    error: its refusal in its words.  groups and layers: one dictionary each, as vLLM describes them.
    users: what its scheduler ran, one dictionary a question (`_child/scheduler.py` answers).
    """

    kv_cache_dtype: str
    max_model_len: int
    max_num_batched_tokens: int | None
    in_flight_tokens: int | None
    block_size: int | None
    num_blocks: int | None
    bytes_per_block: int | None
    tokens: int | None
    max_concurrency: float | None
    mamba_cache_mode: str | None
    mamba_ssm_cache_dtype: str | None
    prefix_caching: bool | None
    encoder_tokens: int | None
    groups: tuple[Mapping[str, Any], ...]
    layers: tuple[Mapping[str, Any], ...]
    users: tuple[Mapping[str, Any], ...]
    error: str | None

    def as_json(self) -> dict[str, Any]:
        """Plain values, keys as in `Pool.as_json` where they mean the same."""
        out = self._asdict()
        out["groups"], out["layers"], out["users"] = list(self.groups), list(self.layers), list(self.users)
        return out

    def differences(self, pool: Pool) -> list[str]:
        """What the arithmetic answers differently, one line a figure; empty when they agree."""
        out = []
        if self.error is not None or pool.error is not None:
            if pool.error is None or self.error is None or pool.error not in self.error:
                out.append(f"verdict: vLLM {self.error or 'starts'!r}, arithmetic {pool.error or 'starts'!r}")
            return out
        for name in ("block_size", "num_blocks", "bytes_per_block", "tokens", "max_concurrency"):
            asked, ours = getattr(self, name), getattr(pool, name)
            if asked is not None and asked != ours:
                out.append(f"{name}: vLLM {asked:,}, arithmetic {ours:,}")
        if len(self.groups) != len(pool.groups):
            out.append(f"groups: vLLM {len(self.groups)}, arithmetic {len(pool.groups)}")
        return out


class OracleAnswer(NamedTuple):
    """version: of the vLLM that was asked.  params: parameters a pipeline stage, as vLLM builds them."""

    version: str
    params: tuple[int, ...]
    layout: str | None
    rows: tuple[OracleRow, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        out = self._asdict()
        out["rows"], out["params"] = [row.as_json() for row in self.rows], list(self.params)
        return out

    def lines(self) -> list[str]:
        """The table of `membudget oracle`."""
        out = [f"vLLM {self.version}, asked in {self.seconds:.0f} s", ""]
        out.append(
            f"{'kv':>8} {'max len':>9} {'batched':>8} {'block':>6} {'blocks':>10} {'tokens':>12} {'concurrency':>12}"
        )
        for row in self.rows:
            head = f"{row.kv_cache_dtype:>8} {row.max_model_len:>9,} {row.max_num_batched_tokens or 0:>8,} "
            if row.error is not None:
                out.append(head + row.error)
                continue
            out.append(
                head + f"{row.block_size or 0:>6,} {row.num_blocks or 0:>10,} {row.tokens or 0:>12,} "
                f"{row.max_concurrency or 0:>11.2f}x"
            )
            out += [f"{each['users']:,} users of {each['ctx']:,} tokens ({each['scheduler']})" for each in row.users]
        return out


def find_python(option: str | None = None) -> str | None:
    """The Python of the vLLM to ask: `option`, else MEMBUDGET_VLLM; a python, its folder, or a `vllm` command."""
    from shutil import which

    given = option or os.environ.get(ENV)
    if not given:
        return None
    if os.path.isdir(given):
        for name in ("bin/python", "python"):
            if os.path.exists(os.path.join(given, name)):
                return os.path.join(given, name)
        return None
    found = which(given)
    if found is None:
        return None
    if os.path.basename(found) == "vllm":
        beside = os.path.join(os.path.dirname(found), "python")
        return beside if os.path.exists(beside) else None
    return found


def text_only(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model of a multimodal config.json as a config.json of its own; others unchanged."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    architecture = TEXT_ARCHITECTURES.get(str(text.get("model_type")))
    if architecture is None:
        return dict(config)
    out = {**text, "architectures": [architecture]}
    for key in ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings"):
        if key not in out and key in config:
            out[key] = config[key]
    return out


def ask(
    python: str,
    config: Mapping[str, Any],
    cases: Sequence[Mapping[str, int]],
    *,
    available: int | Sequence[int],
    kv_cache_dtypes: Sequence[str] = ("auto",),
    platform: str = "cuda",
    capability: tuple[int, int] = (9, 0),
    tp: int = 1,
    pp: int = 1,
    engine: Mapping[str, Any] | None = None,
    users: Sequence[Mapping[str, Any]] = (),
    python_path: str | None = None,
    timeout: float = 900,
) -> OracleAnswer:
    """Ask every pair of `kv_cache_dtypes` and `cases` ({max_model_len, max_num_batched_tokens}).

    available: bytes for the pool, one number or one a pipeline stage.  engine: more vLLM engine arguments.
    users: questions of the scheduler in every case (`_child/scheduler.py` answers).
    python_path: put before the interpreter's own packages (an unpacked wheel).
    Raises `OracleError` when vLLM cannot be asked at all; a case it refuses is a row with `error`.
    """
    job: dict[str, Any] = {
        "config": config,
        "platform": platform,
        "capability": list(capability),
        "available": available if isinstance(available, int) else list(available),
        "tp": tp,
        "pp": pp,
        "engine": dict(engine or {}),
        "kv_cache_dtypes": list(kv_cache_dtypes),
        "cases": [dict(case) for case in cases],
        "users": [dict(each) for each in users],
    }
    answer = _run(python, [job], python_path, timeout)[0]
    if isinstance(answer, OracleError):
        raise answer
    return answer


def ask_many(
    python: str, jobs: Sequence[Mapping[str, Any]], *, python_path: str | None = None, timeout: float = 3600
) -> list[OracleAnswer | OracleError]:
    """Ask about several models with one import of vLLM, each in a fork of it.

    jobs: as `_child/child.py` takes them, with ``config`` for ``model``; all of one platform.
    An `OracleError` stands where a job failed; it is raised where none could be asked.
    """
    return _run(python, jobs, python_path, timeout)


def _run(
    python: str, jobs: Sequence[Mapping[str, Any]], python_path: str | None, timeout: float
) -> list[OracleAnswer | OracleError]:
    import subprocess
    import tempfile

    script = os.path.join(os.path.dirname(__file__), "_child", "child.py")
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    environment.pop("PYTHONPATH", None)
    if python_path:
        environment["PYTHONPATH"] = python_path
    with tempfile.TemporaryDirectory(prefix="membudget-oracle-") as folder:
        asked = []
        for i, job in enumerate(jobs):
            model = os.path.join(folder, str(i), "model")
            os.makedirs(model)
            _write(os.path.join(model, "config.json"), text_only(job["config"]))
            asked.append({**{key: value for key, value in job.items() if key != "config"}, "model": model})
        question, answer = os.path.join(folder, "job.json"), os.path.join(folder, "answer.json")
        _write(question, asked if len(asked) > 1 else asked[0])
        try:
            done = subprocess.run(
                [python, script, question, answer],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OracleError(f"{python}: no answer within {timeout:.0f} s\n{_tail(error.stdout)}") from None
        except OSError as error:
            raise OracleError(f"{python}: cannot be started: {error.strerror}") from None
        if done.returncode or not os.path.exists(answer):
            raise OracleError(f"{python}: ended with {done.returncode}\n{_tail(done.stdout)}")
        with open(answer, encoding="utf-8") as file:
            raw = json.load(file)
        return [_answer_or_error(each) for each in (raw if isinstance(raw, list) else [raw])]


def _answer_or_error(raw: dict[str, Any]) -> OracleAnswer | OracleError:
    try:
        return _answer(raw)
    except OracleError as error:
        return error


def _write(path: str, content: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def _tail(output: bytes | str | None, lines: int = 20) -> str:
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output or "(no output)"
    return "\n".join(text.splitlines()[-lines:])


def _answer(raw: dict[str, Any]) -> OracleAnswer:
    if raw.get("died"):
        raise OracleError(f"vLLM {raw['version']}: the process that was asked about this model ended: {raw['died']}")
    failed = [row["failed"] for row in raw["rows"] if row.get("failed")]
    if failed and len(failed) == len(raw["rows"]):
        trace = raw["rows"][0].get("trace", "")
        raise OracleError(f"vLLM {raw['version']} cannot build this model: {failed[0]}\n{trace}")
    return OracleAnswer(
        raw["version"].partition("+")[0],
        tuple(raw.get("params", ())),
        raw.get("layout"),
        tuple(_row(row) for row in raw["rows"]),
        raw["seconds"],
    )


def _row(raw: dict[str, Any]) -> OracleRow:
    return OracleRow(
        kv_cache_dtype=raw["kv_cache_dtype"],
        max_model_len=raw["max_model_len"],
        max_num_batched_tokens=raw.get("max_num_batched_tokens"),
        in_flight_tokens=raw.get("in_flight_tokens"),
        block_size=raw.get("block_size"),
        num_blocks=raw.get("num_blocks"),
        bytes_per_block=raw.get("bytes_per_block"),
        tokens=raw.get("tokens"),
        max_concurrency=raw.get("concurrency"),
        mamba_cache_mode=raw.get("mamba_cache_mode"),
        mamba_ssm_cache_dtype=raw.get("mamba_ssm_cache_dtype"),
        prefix_caching=raw.get("prefix_caching"),
        encoder_tokens=raw.get("max_num_encoder_input_tokens"),
        groups=tuple(raw.get("groups", ())),
        layers=tuple(raw.get("layers", ())),
        users=tuple(raw.get("users", ())),
        error=raw.get("error") or raw.get("failed"),
    )
