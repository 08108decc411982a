"""What a start-up's end, a refusal and a step of the log are called: the codes that everything decides on."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a start-up ended."""

    STARTED = "started"
    #: By a rule about memory or sizes.
    REFUSED = "refused"
    #: For another reason.
    FAILED = "failed"
    #: The log ends before either.
    TRUNCATED = "truncated"


class RefusalKind(StrEnum):
    """Why vLLM did not start, the most telling first: an out-of-memory is printed on the way to the others."""

    SAMPLER_WARMUP = "sampler_warmup"
    POOLER_WARMUP = "pooler_warmup"
    MAX_NUM_SEQS = "max_num_seqs"
    MAX_MODEL_LEN = "max_model_len"
    FREE_MEMORY = "free_memory"
    KV_ALLOCATION = "kv_allocation"
    MULTIMODAL_RESERVE = "multimodal_reserve"
    PAGE_SIZE = "page_size"
    AUTO_FIT = "auto_fit"
    NO_KV_MEMORY = "no_kv_memory"
    PROFILING = "profiling"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"


#: One sentence for each.
TEXTS: dict[RefusalKind, str] = {
    RefusalKind.SAMPLER_WARMUP: "out of memory in the sampler's warm-up: the KV cache left no room for the logits",
    RefusalKind.POOLER_WARMUP: "out of memory in the pooler's warm-up: the KV cache left no room",
    RefusalKind.MAX_NUM_SEQS: "max_num_seqs exceeds the Mamba cache blocks: every running request needs one",
    RefusalKind.MAX_MODEL_LEN: "one request of max_model_len tokens does not fit into the KV cache",
    RefusalKind.FREE_MEMORY: "less memory is free than gpu_memory_utilization requests",
    RefusalKind.KV_ALLOCATION: "less memory is available than the KV cache requests (CPU)",
    RefusalKind.MULTIMODAL_RESERVE: "the multimodal reserve leaves no memory for the KV cache",
    RefusalKind.PAGE_SIZE: "page sizes of different layers cannot share a pool",
    RefusalKind.AUTO_FIT: "not even one token fits into the KV cache",
    RefusalKind.NO_KV_MEMORY: "weights and activations leave no memory for the KV cache",
    RefusalKind.PROFILING: "another process freed memory while vLLM measured its own",
    RefusalKind.OUT_OF_MEMORY: "an allocation failed (out of memory)",
    RefusalKind.KILLED: "the process was killed, as the kernel does when memory is exhausted",
}


class Event(StrEnum):
    """A step of the start-up that a message marks; END is set by the reader, where an engine's part of a log ends."""

    BANNER = "banner"
    ARGS = "args"
    INIT = "init"
    DRAFTER = "drafter"
    INIT_DONE = "init_done"
    READY = "ready"
    FAILED = "failed"
    END = "end"
