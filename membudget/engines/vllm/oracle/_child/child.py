"""Asks the vLLM of this very Python how it would carve its KV pool; no GPU, no weights.

    python child.py JOB.json ANSWER.json

Runs in the asked vLLM's environment, imports nothing of membudget.  The job:

    model          folder with a config.json
    platform       cuda | cpu;  capability [9, 0], total_bytes, integrated: the CUDA device it is told
    available      bytes for the pool, one number a pipeline stage or one for all
    tp, pp         parallel sizes
    engine         more vllm EngineArgs
    kv_cache_dtypes, cases [{max_model_len, max_num_batched_tokens}]: every pair is asked
    users          questions of the scheduler, asked in every case (scheduler.answers)

The answer holds one entry a pair, and what is common to them.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from os import _exit
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_V1", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import fake_cuda
import pools
import torch


def stub_cpu_ops() -> None:
    """Wheels whose compiled part does not load beside this torch: ops are probed, never called."""
    import torch._ops as ops

    namespace: Any = ops._OpNamespace
    original = namespace.__getattr__

    class Op:
        def __init__(self, name: str) -> None:
            self.name, self.default, self.out = name, self, self

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if "support" in self.name:
                return False
            raise RuntimeError(f"custom op {self.name} was called while a model was built")

    def getattr_(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if name.startswith("__") or self.__dict__.get("name") not in (
                "_C",
                "_moe_C",
                "_C_cache_ops",
                "_C_utils",
                "_C_cpu",
            ):
                raise
            if sys._getframe(1).f_code.co_name == "<module>":
                raise
            return Op(name)

    namespace.__getattr__ = getattr_


class ToMeta(torch.overrides.TorchFunctionMode):
    """Tensors asked for on ``cuda`` by name are made on the meta device."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and (isinstance(device, int) or str(device).startswith("cuda")):
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def engine_config(job: dict[str, Any], kv_cache_dtype: str, case: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    arguments: dict[str, Any] = {
        "model": job["model"],
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "enforce_eager": True,
        "kv_cache_dtype": kv_cache_dtype,
        "tensor_parallel_size": job.get("tp", 1),
        "pipeline_parallel_size": job.get("pp", 1),
        **case,
        **job.get("engine", {}),
    }
    if job.get("tp", 1) * job.get("pp", 1) > 1:
        arguments["distributed_executor_backend"] = "mp"
    extra: dict[str, Any] = {}
    if "usage_context" in inspect.signature(EngineArgs.create_engine_config).parameters:
        from vllm.usage.usage_lib import UsageContext

        extra["usage_context"] = UsageContext.OPENAI_API_SERVER
    return EngineArgs(**arguments).create_engine_config(**extra)


def inspect_here() -> None:
    """Model classes are inspected in this process: the default is a second process that imports all again."""
    try:
        from vllm.model_executor.models import registry
    except ImportError:
        return
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()
    fake_cuda.without_torchvision()


def init_groups(job: dict[str, Any]) -> None:
    """A process group of one that says it is rank 0 of a larger one: only sizes are read."""
    import vllm.distributed.parallel_state as parallel

    # in the folder of this question, which is ours alone: in a shared one somebody could wait for the name
    folder = os.path.dirname(os.path.abspath(job["model"]))
    parallel.init_distributed_environment(1, 0, f"file://{folder}/ranks", 0, "gloo")
    parallel.initialize_model_parallel(1, 1, backend="gloo")
    try:
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(torch.device("meta"))
    except ImportError:
        pass
    group: Any = parallel.get_tp_group()
    group.world_size, group.rank_in_group = job.get("tp", 1), 0


def build(config: Any, job: dict[str, Any], stage: int) -> Any:
    import vllm.distributed.parallel_state as parallel

    pp: Any = parallel.get_pp_group()
    pp.world_size, pp.rank_in_group = job.get("pp", 1), stage
    if job.get("pp", 1) > 1:
        pp.ranks, pp.rank = list(range(job["pp"])), stage
    try:
        from vllm.model_executor.model_loader.utils import initialize_model
    except ImportError:
        from vllm.model_executor.model_loader.loader import _initialize_model as initialize_model
    try:
        from vllm.utils.torch_utils import set_default_torch_dtype
    except ImportError:
        from vllm.model_executor.model_loader.utils import set_default_torch_dtype
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"), ToMeta():
        return initialize_model(config)


def follows_length(config: Any, case: dict[str, Any]) -> bool:
    """Whether a mamba block is as long as the longest request, so that another length is another config."""
    length = config.model_config.max_model_len
    block = getattr(config.cache_config, "mamba_block_size", None)
    return bool(block == length and case.get("max_model_len", length) != length)


PREPARED: list[bool] = []


def prepare(job: dict[str, Any]) -> None:
    """The device that vLLM is told it has, before anything of it is imported."""
    if job.get("platform") == "cuda":
        fake_cuda.install(
            tuple(job.get("capability", (9, 0))),
            job.get("total_bytes", 80 << 30),
            integrated=job.get("integrated", False),
        )
    else:
        stub_cpu_ops()
    PREPARED.append(True)


def main(job: dict[str, Any]) -> dict[str, Any]:
    started = time.time()
    item = torch.Tensor.item
    torch.Tensor.item = lambda self: 0.0 if self.is_meta else item(self)  # type: ignore[assignment, method-assign]
    if not PREPARED:
        prepare(job)
    import vllm
    from vllm.platforms import current_platform

    try:
        from vllm.config import set_current_vllm_config
    except ImportError:
        from vllm.config.vllm import set_current_vllm_config

    inspect_here()
    stages = job.get("pp", 1)
    available = job["available"] if isinstance(job["available"], list) else [job["available"]] * stages
    answer: dict[str, Any] = {"version": vllm.__version__, "rows": []}
    ready = False
    for dtype in job.get("kv_cache_dtypes", ["auto"]):
        config: Any = None
        for case in job["cases"]:
            row: dict[str, Any] = {"kv_cache_dtype": dtype, **case}
            answer["rows"].append(row)
            try:
                if config is None or follows_length(config, case):
                    config = engine_config(job, dtype, case)
                    with set_current_vllm_config(config):
                        if not ready:
                            init_groups(job)
                            ready = True
                            if job.get("platform") == "cuda":
                                fake_cuda.before_models()
                        specs = []
                        for stage in range(stages):
                            config.compilation_config.static_forward_context.clear()
                            model = build(config, job, stage)
                            unique = {id(p): p for p in model.parameters()}.values()
                            answer.setdefault("params", []).append(sum(p.numel() for p in unique))
                            if callable(getattr(current_platform, "update_block_size_for_backend", None)):
                                current_platform.update_block_size_for_backend(config)
                            specs.append(pools.layer_specs(config))
                        answer["layout"] = pools.resolve_layout(config, specs)
                scheduler, cache = config.scheduler_config, config.cache_config
                config.model_config.max_model_len = case.get("max_model_len", config.model_config.max_model_len)
                if case.get("max_num_batched_tokens"):
                    scheduler.max_num_batched_tokens = case["max_num_batched_tokens"]
                    if getattr(scheduler, "max_num_scheduled_tokens", None) is not None:
                        scheduler.max_num_scheduled_tokens = case["max_num_batched_tokens"]
                with set_current_vllm_config(config):
                    row.update(pools.carve(config, specs, available, job.get("users", [])))
                row.update(
                    max_model_len=config.model_config.max_model_len,
                    max_num_batched_tokens=scheduler.max_num_batched_tokens,
                    max_num_encoder_input_tokens=getattr(scheduler, "max_num_encoder_input_tokens", None),
                    in_flight_tokens=getattr(config, "max_in_flight_tokens", scheduler.max_num_batched_tokens),
                    prefix_caching=cache.enable_prefix_caching,
                    block_size=cache.block_size,
                    mamba_block_size=getattr(cache, "mamba_block_size", None),
                    mamba_cache_mode=getattr(cache, "mamba_cache_mode", None),
                    mamba_ssm_cache_dtype=getattr(cache, "mamba_ssm_cache_dtype", None),
                    dtype=str(config.model_config.dtype).removeprefix("torch."),
                )
                layers: dict[str, int] = {}
                for spec in (each for stage in specs for each in stage.values()):
                    text = json.dumps(pools.describe(spec), sort_keys=True)
                    layers[text] = layers.get(text, 0) + 1
                row["layers"] = [{"n": count, **json.loads(text)} for text, count in layers.items()]
            except Exception as error:  # one case that vLLM refuses must not lose the others
                import traceback

                row["failed"] = f"{type(error).__name__}: {error}"
                row["trace"] = traceback.format_exc(limit=-6)
                config = None
    answer["seconds"] = round(time.time() - started, 1)
    return answer


def main_of_many(jobs: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Every job in a process of its own, forked from one that has imported vLLM; a job that fails has `died`."""
    prepare(jobs[0])
    import vllm
    import vllm.engine.arg_utils

    answers: list[dict[str, Any]] = []
    for i, job in enumerate(jobs):
        path = os.path.join(folder, f"answer-{i}.json")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(main(job), file)
                status = 0
            finally:
                sys.stdout.flush()
                _exit(status)
        _, status = os.waitpid(child, 0)
        if status:
            answers.append({"version": vllm.__version__, "died": status, "rows": []})
            continue
        with open(path, encoding="utf-8") as file:
            answers.append(json.load(file))
    return answers


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        asked = json.load(file)
    result = main_of_many(asked, os.path.dirname(sys.argv[2])) if isinstance(asked, list) else main(asked)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file)
    sys.stdout.flush()
    _exit(0)  # leave no engine threads behind
