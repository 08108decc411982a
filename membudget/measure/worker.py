"""The process that measures: `python -m membudget.measure.worker`, started by `membudget.measure.guard`.

One JSON request comes in, stages go out as JSON lines with readings, {"result": ...} last.
It ends itself when its parent is gone, offers itself to the kernel's OOM killer first, and
sets its own ceiling before it allocates anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from os import _exit
from typing import Any

from membudget.host.sources import snap

_PR_SET_PDEATHSIG = 1
#: Settings that change what a device's libraries allocate: kept beside the versions.
RECORDED = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED",
    "CUBLAS_WORKSPACE_CONFIG",
)


def main() -> int:
    """Answer one request; 0 when every step was tried."""
    say = _Voice()
    parent = os.getppid()
    line = sys.stdin.readline()
    _end_with(parent)
    request = json.loads(line)
    say.stage("start", {"pid": os.getpid()}, read=True)
    if "jobs" in request:
        say.line({"result": {"codes": answer_each(request["jobs"], say)}})
    else:
        say.line({"result": {"steps": answer(request, say)}})
    return 0


def answer_each(jobs: list[dict[str, Any]], say: _Voice) -> list[int]:
    """Each job in a process of its own, forked from this one: torch is loaded once.  Their exit codes.

    Only for the CPU: a CUDA context does not survive a fork.
    """
    import gc

    import torch
    import torch._subclasses.fake_tensor
    import transformers.masking_utils  # noqa: F401  (loaded before the fork)

    _quiet(torch, "cpu")
    gc.collect()
    gc.freeze()
    codes = []
    for number, job in enumerate(jobs):
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _die_with(parent)
                say.job = number
                answer(job, say)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                _exit(code)
        _, status = os.waitpid(pid, 0)
        codes.append(os.waitstatus_to_exitcode(status))
    return codes


def answer(request: dict[str, Any], say: _Voice) -> dict[str, Any]:
    """Run the request's steps in order; what each found, by its name.

    A step that fails leaves {"error": ...} and the next one is tried; what was found is also
    in the stages, so that it survives a kill.
    """
    import torch

    from membudget.measure.early import EARLY, run_early
    from membudget.measure.edge import informed
    from membudget.measure.meter import meter
    from membudget.measure.models import CannotBuild
    from membudget.measure.steps import STEPS, Bench

    _quiet(torch, request["device"])
    say.stage("ready", {"versions": _versions()})
    found: dict[str, Any] = {}
    bench: Bench | None = None
    for step in sorted(request["steps"], key=lambda step: step["do"] not in EARLY):
        name = step.get("name", step["do"])
        if bench is None and step["do"] not in EARLY and (why := _too_much(request, found)):
            say.stage(name, {"refused": why}, read=True)
            break
        began = time.monotonic()
        say.stage(name, {"begins": True})
        try:
            if step["do"] in EARLY:
                found[name] = run_early(request, step, say.stage)
            else:
                if bench is None:
                    bench = Bench(request, meter(request["device"], request.get("ceiling")), say.stage)
                found[name] = STEPS[step["do"]](bench, informed(step, found))
        except CannotBuild as error:
            found[name] = {"unknown": str(error)}
        except Exception as error:
            import traceback

            print(traceback.format_exc(), file=sys.stderr)
            found[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        say.stage(name, {"found": found[name], "seconds": round(time.monotonic() - began, 2)}, read=True)
    return found


def _too_much(request: dict[str, Any], found: dict[str, Any]) -> str | None:
    """Why nothing is loaded, after what the trace found: predicted peak and what is available; None where it may be."""
    from membudget.host import nvidia_smi, system
    from membudget.measure import guard
    from membudget.measure.need import Moment, needed

    start = request.get("start")
    if start is None:
        return None
    known = {**start.get("traced", {}), **found}
    need = needed(start["weights"], [Moment(*moment) for moment in start["moments"]], known)
    if "available" in start:
        here = start["available"]
    else:  # a card has memory of its own, and the host's says nothing about it
        here = nvidia_smi.card_free() if start.get("pool") == "card" else system.available()
    reason = guard.refusal(guard.Limits(need.bytes, start["beside"], 0, 0.0), here)
    return f"{reason}; the peak is of {need.why}" if reason else None


class _Voice:
    """Our standard output, out of reach of libraries that print: theirs goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
        os.dup2(2, 1)
        self.job: int | None = None

    def line(self, said: dict[str, Any]) -> None:
        self._out.write(json.dumps(said) + "\n")
        self._out.flush()

    def stage(self, name: str, more: dict[str, Any], read: bool = False) -> None:
        """A report; with `read`, the machine's figures at this moment beside it."""
        readings = {"readings": snap(name).as_json()} if read else {}
        self.line({"stage": name, **more, **readings, **({} if self.job is None else {"job": self.job})})


def _versions() -> dict[str, str]:
    import torch
    import transformers

    found = {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}
    cuda = getattr(torch.version, "cuda", None)
    settings = {name: os.environ[name] for name in RECORDED if os.environ.get(name)}
    return {**found, **({"cuda": str(cuda)} if cuda else {}), **settings}


def _quiet(torch: Any, device: str) -> None:
    if device == "cpu":
        torch.set_num_threads(1)  # tiny models: threads would wait for each other
    with contextlib.suppress(ImportError):
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()


def _end_with(parent: int) -> None:
    """End when the parent ends, however it ends, and before anyone else when memory is short."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    _die_with(parent)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        _leave()

    threading.Thread(target=watch, daemon=True).start()


def _die_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we asked
            _leave()


def _leave() -> None:
    """End the whole process group where it is our own."""
    with contextlib.suppress(OSError, AttributeError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    _exit(1)


if __name__ == "__main__":
    sys.exit(main())
