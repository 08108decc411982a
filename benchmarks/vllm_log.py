"""How long a vLLM log takes to read, and how much memory, by what it is made of.

    python benchmarks/vllm_log.py [--mb 50] [--limit 2.0]

Each kind is a real start-up followed by what long logs are made of, read in a process of
its own; the seconds are that process's own.  With --limit, exit code 1 says that the kind
a serving engine writes took longer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
START = (ROOT / "fixtures" / "logs" / "cpu" / "0.32.0-serve.log").read_text(encoding="utf-8")
ACCESS = '(APIServer pid=1) INFO:     127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
STATS = (
    "(APIServer pid=1) INFO 11-30 00:43:41 [loggers.py:257] Engine 000: Avg prompt throughput: 1520.3 tokens/s, Avg "
    "generation throughput: 310.2 tokens/s, Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 31.2%, Prefix cache "
    "hit rate: 12.1%\n"
)
TRACE = 'Traceback (most recent call last):\n  File "app.py", line 12, in f\n    raise KeyError("x")\nValueError: odd\n'
BAR = "\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.02s/it]"
KINDS = {
    "requests and statistics": ACCESS * 9 + STATS,
    "tracebacks": TRACE,
    "progress bars": BAR * 50 + "\n",
    "start-ups": START,
}


def measure(kind: str, size: int, answer: multiprocessing.connection.Connection) -> None:
    """CPU seconds, engines and peak MiB of reading `size` bytes of one kind."""
    sys.path.insert(0, str(ROOT))
    from membudget.engines.vllm.logs.log import parse, parse_stream

    parse(START.splitlines(keepends=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    piece = KINDS[kind].encode()
    with tempfile.TemporaryFile() as log:
        log.write(START.encode())
        for _ in range(size // (len(piece) * 64) + 1):
            log.write(piece * 64)
        log.seek(0)
        begin = time.process_time()
        engines = len(parse_stream(log))
    seconds = time.process_time() - begin
    answer.send((seconds, engines, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=50, help="size of each log; default: 50")
    parser.add_argument("--limit", type=float, help="exit code 1 above so many seconds for requests and statistics")
    options = parser.parse_args()
    slow = False
    for kind in KINDS:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(kind, options.mb * 10**6, theirs))
        process.start()
        seconds, engines, mib = ours.recv()
        process.join()
        print(f"{kind:<26} {options.mb} MB  {seconds:5.2f} s  {engines:>5} engines  +{mib:.0f} MiB")
        slow = slow or (kind == "requests and statistics" and options.limit is not None and seconds > options.limit)
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
