"""What vLLM prints about memory, 0.6 to 0.33: one row a message.

A row is ``key | first..last version | file in vllm/ | flag | anchor`` and, indented below it,
a regular expression in which ``{name:kind}`` stands for a figure; `KINDS` of `messages` has the kinds.  The
anchor is a literal that every match contains: readers test it first, which is what makes a
50 MB log quick.  The flag is ``!kind`` for a refusal to start, ``@event`` for a step of the
start-up, else ``-``.  Rewordings that keep the figures share a row.
"""

from __future__ import annotations

TABLE = r"""# who speaks, and with which settings
api_version | 0.6.6..0.33.0 | entrypoints | @banner | server version
    vLLM (?:API )?server version {version:word}(?:, serving model {model:rest})?
logo_version | 0.20.0..0.33.0 | entrypoints/utils.py | @banner | █
    [█▀▄]\s+version {version:word}
logo_model | 0.20.0..0.33.0 | entrypoints/utils.py | - | █
    [█▀▄]\s+model\s+{model:rest}
args | 0.8.5..0.33.0 | entrypoints/utils.py | @args | non-default args:
    non-default args: {args:rest}
namespace | 0.6.6..0.9.2 | entrypoints | @args | args: Namespace(
    \bargs: Namespace\({args:rest}
init | 0.6.6..0.33.0 | v1/engine/core.py | @init | LLM engine (v
    Initializing an? (?:V\d )?LLM engine \(v{version:word}\) with config: {config:rest}
max_len | 0.10.2..0.33.0 | config/model.py | - | max model len
    Using max model len {configured_max_model_len:tokens}\b
chunked | 0.8.5..0.33.0 | config/scheduler.py | - | max_num_batched_tokens=
    Chunked prefill is enabled with max_num_batched_tokens={max_num_batched_tokens:tokens}\.
architecture | 0.10.2..0.33.0 | config/model.py | - | Resolved architecture:
    Resolved architecture: {architecture:arch}
draft_architecture | 0.10.2..0.33.0 | config/model.py | @drafter | Resolved architecture:
    Resolved architecture: {draft_architecture:draftarch}
drafter | 0.12.0..0.33.0 | v1/spec_decode/llm_base_proposer.py | @drafter | Detected
    Detected {drafter:draftkind} model\b
kv_dtype | 0.8.5..0.33.0 | config/cache.py | - | data type to store kv cache
    Using {kv_dtype:word} data type to store kv cache
async | 0.14.0..0.26.0 | config/vllm.py | - | Asynchronous scheduling is
    Asynchronous scheduling is {async_scheduling:onoff}
mamba_mode | 0.17.0..0.33.0 | model_executor/models/config.py | - | Mamba cache mode is set to
    Mamba cache mode is set to '{mamba_cache_mode:word}'

# loading
checkpoint | 0.20.2..0.33.0 | model_executor/model_loader/weight_utils.py | - | Checkpoint size:
    Checkpoint size: {checkpoint_size:gib} GiB\.(?: Available RAM: {available_ram:gib} GiB)?
weights_took | 0.8.5..0.33.0 | model_executor/model_loader/default_loader.py | - | Loading weights took
    Loading weights took {weights_seconds:s} seconds
load | 0.8.3..0.33.0 | v1/worker/gpu_model_runner.py | - | Model loading took
    Model loading took {weights:gib} Gi?B(?: memory)?(?: and {load_seconds:s} s(?:econds)?\b)?
load_v0 | 0.6.6..0.8.2 | worker/model_runner.py | - | Loading model weights took
    Loading model weights took {weights:gib} GB
load_peak | 0.16.0..0.33.0 | model_executor/model_loader/base_loader.py | - | Peak GPU memory after loading
    Peak GPU memory after loading weights: {load_peak:gib} GiB

# the budget: what is there, what is asked for, what is used
v0_profile | 0.6.3..0.6.5 | worker/worker.py | - | Memory profiling results:
    Memory profiling results: total_gpu_memory={total_memory:gib}GiB initial_memory_usage={used_at_start:gib}GiB
    peak_torch_memory={peak_with_weights:gib}GiB memory_usage_post_profile={used_after:gib}Gi[bB]
    non_torch_memory={non_torch:gib}GiB kv_cache_size={available_kv:gib}GiB gpu_memory_utilization={utilization:util2}
v0_can_use | 0.6.6..0.10.2 | worker/worker.py | - | the current vLLM instance can use
    total_gpu_memory \({total_memory:gib}GiB\) x gpu_memory_utilization \({utilization:util2}\) =
    {requested_memory:gib}GiB
v0_takes | 0.6.6..0.10.2 | worker/worker.py | - | model weights take
    model weights take {weights:gib}GiB; non_torch_memory takes {non_torch:gib}GiB; PyTorch activation peak
    memory takes {peak_activation:gib}GiB; the rest of the memory reserved for KV Cache is {available_kv:gib}GiB
startup_free | 0.10.2..0.33.0 | v1/worker/gpu_worker.py | - | Free memory on device
    Free memory on device (?:\S+ )?\({free_memory:gib}/{total_memory:gib} GiB\) on startup(?! is less)
startup_desired | 0.10.2..0.33.0 | v1/worker/gpu_worker.py | - | Desired GPU memory utilization is
    Desired GPU memory utilization is \({utilization:util}, {requested_memory:gib} GiB\)
actual_split | 0.10.2..0.26.0 | v1/worker/gpu_worker.py | - | GiB for weight,
    Actual usage is {weights:gib} GiB for weight, {peak_activation:gib} GiB for peak activation, {non_torch:gib}
    GiB for non-torch memory, and {cudagraph:gib} GiB for CUDAGraph memory
actual_consumed | 0.27.0..0.33.0 | v1/worker/gpu_worker.py | - | GiB for consumed memory
    Actual usage is {consumed:gib} GiB for consumed memory \(weights \+ non-torch\), {peak_with_graphs:gib} GiB
    for peak activation, and {cudagraph:gib} GiB for CUDAGraph memory
suggest_requested | 0.10.2..0.33.0 | v1/worker/gpu_worker.py | - | to fit into requested memory
    `--kv-cache-memory={suggested_kv_requested:bytes}`(?: \(-?[\d.]+ GiB\))? to fit into requested memory
suggest_full | 0.10.2..0.33.0 | v1/worker/gpu_worker.py | - | to fully utilize gpu memory
    `--kv-cache-memory={suggested_kv_full:bytes}`(?: \(-?[\d.]+ GiB\))? to fully utilize gpu memory
kv_in_use | 0.11.2..0.33.0 | v1/worker/gpu_worker.py | - | Current kv cache memory in use
    Current kv cache memory in use is {available_kv:gib} GiB\.
kv_in_use_bytes | 0.10.2..0.10.2 | v1/worker/gpu_worker.py | - | Current kv cache memory in use
    Current kv cache memory in use is {available_kv:bytes} bytes\.
initial_free | 0.9.2..0.33.0 | v1/worker/gpu_worker.py | - | Initial free memory:
    Initial free memory: {free_memory:gib} GiB; Requested memory: {utilization:util2} \(util\),
    {requested_memory:gib} GiB
initial_free_old | 0.9.2..0.9.2 | v1/worker/gpu_worker.py | - | requested GPU memory:
    Initial free memory: {free_memory:gib} GiB, free memory: {free_after:gib} GiB, requested GPU memory:
    {requested_memory:gib} GiB
free_after | 0.10.2..0.33.0 | v1/worker/gpu_worker.py | - | Free memory after profiling:
    Free memory after profiling: {free_after:gib} GiB \(total\), {free_within:gib} GiB \(within requested\)
worker_requested | 0.14.0..0.33.0 | v1/worker/gpu_worker.py | - | worker requested memory:
    worker requested memory: {requested_memory:gib}GiB
snapshot | 0.14.0..0.33.0 | v1/worker/gpu_worker.py | - | worker init memory snapshot:
    worker init memory snapshot: .{0,300}?free_memory={free_memory:gib}GiB, total_memory={total_memory:gib}GiB
profile | 0.9.2..0.26.0 | utils/mem_utils.py | - | Total non KV cache memory:
    Total non KV cache memory: {non_kv:gib}GiB; torch peak memory increase: {peak_activation:gib}GiB; non-torch
    forward increase memory: {non_torch:gib}GiB; weights memory: {weights:gib}GiB
profile_consumed | 0.27.0..0.33.0 | utils/mem_utils.py | - | total consumed (from mem_get_info)
    Total non KV cache memory: {non_kv:gib}GiB; torch peak memory increase: {torch_peak:gib}GiB; total consumed
    \(from mem_get_info\): {consumed:gib}GiB; weights memory: {weights:gib}GiB
available | 0.9.2..0.33.0 | v1/worker/gpu_worker.py | - | Available KV cache memory:
    Available KV cache memory: {available_kv:gib} GiB
reserved | 0.10.2..0.33.0 | v1/worker/gpu_worker.py | - | as specified by kv_cache_memory_bytes
    Initial free memory {free_memory:gib} GiB, reserved {reserved_kv:gib} ?GiB memory for KV Cache as specified
    by kv_cache_memory_bytes
startup_plan | 0.26.0..0.33.0 | v1/worker/startup_plan.py | - | Applying persisted startup plan
    Applying persisted startup plan \(fingerprint \S+\): kv_cache_memory_bytes={reserved_kv:bytes} \(
rocm_grew | 0.29.0..0.33.0 | v1/worker/gpu_worker.py | - | Free memory grew by
    Free memory grew by {free_grew:gib} GiB during profiling
cpu_explicit | 0.20.0..0.33.0 | v1/worker/cpu_worker.py | - | Explicitly set (
    Explicitly set \({reserved_kv:gib}/{total_memory:gib}\) GiB for KV cache on node
cpu_auto | 0.20.0..0.33.0 | v1/worker/cpu_worker.py | - | Auto set (
    Auto set \({available_kv:gib}/{total_memory:gib}\) GiB for KV cache on node \S+, with {requested_memory:gib}
    GiB requested memory for the worker\. {consumed:gib} GiB memory was consumed

# CUDA graphs
graph_estimate | 0.18.0..0.33.0 | v1/worker/gpu_model_runner.py | - | Estimated CUDA graph memory:
    Estimated CUDA graph memory: {cudagraph_estimate:gib} GiB total
graph_pool | 0.18.0..0.33.0 | v1/worker/gpu_worker.py | - | CUDA graph pool memory:
    CUDA graph pool memory: {cudagraph:gib} GiB \(actual\), {cudagraph_estimate:gib} GiB \(estimated\)
graph_capture | 0.6.6..0.33.0 | v1/worker/gpu_model_runner.py | - | Graph capturing finished in
    Graph capturing finished in {graph_seconds:s} secs, took {cudagraph:gib} GiB
graph_util | 0.18.0..0.33.0 | v1/worker/gpu_worker.py | - | current --gpu-memory-utilization=
    The current --gpu-memory-utilization={utilization:util4} is equivalent to
    --gpu-memory-utilization={utilization_without_graphs:util4} without
graph_off | 0.20.0..0.33.0 | v1/worker/gpu_worker.py | - | CUDA graph memory profiling is disabled
    CUDA graph memory profiling is disabled \({graphs_not_charged:word}\)
graph_later | 0.18.0..0.19.1 | v1/worker/gpu_worker.py | - | CUDA graph memory profiling will be enabled by default
    In v0\.19, CUDA graph memory profiling will be enabled by default \({graphs_not_charged:word}\)

# the pool
tokens | 0.8.5..0.33.0 | v1/core/kv_cache_utils.py | - |  KV cache size:
    \b\w+(?: \+ host)? KV cache size: {kv_tokens:tokens} tokens
concurrency | 0.6.6..0.33.0 | v1/core/kv_cache_utils.py | - | Maximum concurrency for
    Maximum concurrency for {max_model_len:tokens} tokens per request: {max_concurrency:x}x
blocks_v0 | 0.6.6..0.10.2 | executor/executor_base.py | - | , # CPU blocks:
    # \w+ blocks: {num_blocks:blocks}, # CPU blocks: {num_cpu_blocks:blocks}
blocks_v1 | 0.6.6..0.6.6 | v1/executor/uniproc_executor.py | - | # GPU blocks:
    # GPU blocks: {num_blocks:blocks}(?![\d,])
blocks_logged | 0.9.2..0.33.0 | v1/metrics/loggers.py | - | after num_gpu_blocks is:
    with initialization after num_gpu_blocks is: {num_blocks:blocks}(?!\d)
blocks_config | 0.8.5..0.33.0 | config/cache.py | - | num_gpu_blocks=
    (?<!Overriding )\bnum_gpu_blocks={num_blocks:blocks}(?!\d)
override | 0.6.6..0.33.0 | v1/core/kv_cache_utils.py | - | num_gpu_blocks_override=
    Overriding num_gpu_blocks={profiled_blocks:blocks} with
    num_gpu_blocks_override={override_blocks:blocks}(?!\d)
dcp | 0.10.2..0.11.2 | v1/core/kv_cache_utils.py | - | by the dcp_world_size
    Multiplying the GPU KV cache size by the dcp_world_size {context_parallel:count}\.
cp | 0.12.0..0.20.0 | v1/core/kv_cache_utils.py | - | by the cp_world_size
    Multiplying the GPU KV cache size by the cp_world_size {context_parallel:count} \(
attention_block | 0.9.2..0.33.0 | platforms/interface.py | - | Setting attention block size to
    Setting attention block size to {block_size:count} tokens
kv_block | 0.18.0..0.33.0 | platforms/interface.py | - | Setting kv cache block size to
    Setting kv cache block size to {block_size:count} for
mamba_padding | 0.10.2..0.33.0 | platforms/interface.py | - | Padding mamba page size by
    Padding mamba page size by {mamba_padding:pct}%
padding_layers | 0.9.2..0.33.0 | v1/core/kv_cache_utils.py | - |  padding layers, may waste
    Add {padding_layers:count} padding layers, may waste at most {padding_waste:pct}% KV cache memory
group_sizes | 0.30.0..0.33.0 | v1/core/kv_cache_utils.py | - | kv cache group sizes (
    kv cache group sizes {group_block_sizes:rest}
hybrid_off | 0.9.2..0.33.0 | v1/core/kv_cache_utils.py | - | Hybrid KV cache manager is disabled for this
    Hybrid KV cache manager is {hybrid_manager:word} for this hybrid model
sliding_as_full | 0.27.0..0.33.0 | v1/core/kv_cache_utils.py | - | treating sliding-window layers as
    treating sliding-window layers as {sliding_layers_as:word} attention
autofit_full | 0.14.0..0.33.0 | v1/core/kv_cache_utils.py | - | Auto-fit max_model_len: full
    Auto-fit max_model_len: full model context length {autofit_max_model_len:tokens} fits
autofit_reduced | 0.14.0..0.33.0 | v1/core/kv_cache_utils.py | - | Auto-fit max_model_len: reduced
    Auto-fit max_model_len: reduced from {autofit_from:tokens} to {autofit_max_model_len:tokens} to fit
autofit_free | 0.14.0..0.33.0 | v1/core/kv_cache_utils.py | - | Auto-fit max_model_len: attention-free
    Auto-fit max_model_len: attention-free model, using derived
    max_model_len={autofit_max_model_len:tokens}(?!\d)
encoder | 0.8.5..0.33.0 | v1/worker/gpu_model_runner.py | - | Encoder cache will be initialized
    Encoder cache will be initialized with a budget of {encoder_budget:tokens} tokens

# ready
init_took | 0.6.6..0.33.0 | v1/engine/core.py | @init_done | init engine (profile
    init engine \(profile, create kv cache, warmup model\) took {init_seconds:s} s
serving | 0.6.6..0.33.0 | uvicorn | @ready | Application startup complete
    Application startup complete
serving_on | 0.6.6..0.33.0 | uvicorn | @ready | Uvicorn running on
    Uvicorn running on

# refusals
low_free | 0.9.2..0.33.0 | v1/worker/utils.py | !free_memory | on startup is less than desired GPU memory
    Free memory on device (?:\S+ )?\({free_memory:gib}/{total_memory:gib} GiB\) on startup is less than desired
    GPU memory utilization \({utilization:util}, {requested_memory:gib} GiB\)
low_free_shared | 0.32.0..0.33.0 | v1/worker/utils.py | !free_memory | on startup is less than the engine's budget
    Free memory on device (?:\S+ )?\({free_memory:gib}/{total_memory:gib} GiB\) on startup is less than the
    engine's budget after excluding external process's weights \({utilization:util}, {requested_memory:gib} GiB
no_memory | 0.6.6..0.33.0 | v1/core/kv_cache_utils.py | !no_kv_memory | No available memory for the cache blocks
    No available memory for the cache blocks
serve_one | 0.8.5..0.33.0 | v1/core/kv_cache_utils.py | !max_model_len | KV cache is needed, which is larger
    (?:(?:[Tt]he models?'s )?max seq len \({max_model_len:tokens}\), )?\(?{needed_kv:gib} GiB KV cache is needed,
    which is larger(?: than the available KV cache memory(?: \({available_kv:gib} GiB\)(?:.{0,200}?estimated maximum
    model length is {estimated_max_model_len:tokens}(?=\.))?)?)?
len_v0 | 0.6.6..0.10.2 | worker/worker.py | !max_model_len | tokens that can be stored in KV cache
    (?:[Tt]he models?'s )?max seq len \({max_model_len:tokens}\) is larger than the maximum number of tokens that
    can be stored in KV cache \({kv_tokens:tokens}\)
mamba_seqs | 0.20.0..0.33.0 | config/compilation.py | !max_num_seqs | exceeds available Mamba cache blocks
    max_num_seqs \({max_num_seqs:count}\) exceeds available Mamba cache blocks \({mamba_blocks:blocks}\)
profiling | 0.9.2..0.33.0 | v1/worker/gpu_worker.py | !profiling | Error in memory profiling. Initial free memory
    Error in memory profiling\. Initial free memory {free_memory:gib} GiB, current free memory {free_after:gib}
    GiB
profiling_bytes | 0.6.6..0.10.2 | worker/worker.py | !profiling | Error in memory profiling. Initial
    Error in memory profiling\. Initial (?:free|used) memory {free_before_bytes:bytes}, current(?:ly)?
    (?:free|used) memory {free_after_bytes:bytes}\.
no_autofit | 0.14.0..0.33.0 | v1/core/kv_cache_utils.py | !auto_fit | Cannot auto-fit max_model_len
    Cannot auto-fit max_model_len: not enough GPU memory
sampler | 0.8.5..0.33.0 | v1/worker/gpu_model_runner.py | !sampler_warmup | when warming up sampler
    CUDA out of memory occurred when warming up sampler with {warmup_requests:count} dummy requests
pooler | 0.9.2..0.33.0 | v1/worker/gpu_model_runner.py | !pooler_warmup | when warming up pooler
    CUDA out of memory occurred when warming up pooler (?:\(task=\S+\) )?with {warmup_requests:count} dummy
    requests
cpu_low | 0.20.0..0.33.0 | v1/worker/cpu_worker.py | !free_memory | on startup is less than desired CPU memory
    Available memory on node \S+ \({free_memory:gib}/{total_memory:gib} GiB\) on startup is less than desired
    CPU memory utilization \({utilization:util}, {requested_memory:gib} GiB\)
cpu_kv | 0.20.0..0.33.0 | v1/worker/cpu_worker.py | !kv_allocation | on kv cache allocation is less than requested
    Available memory on node \S+ \({free_memory:gib}/{total_memory:gib} GiB\) on kv cache allocation is less
    than requested memory for kv \({available_kv:gib}(?:/{requested_memory:gib})? GiB\)
cpu_full | 0.33.0..0.33.0 | v1/worker/cpu_worker.py | !no_kv_memory | of CPU memory reserved for it on node
    The worker already uses {consumed:gib} GiB \(model weights and runtime\), more than the
    {requested_memory:gib} GiB of CPU memory reserved
mm_ipc | 0.26.0..0.33.0 | multimodal/gpu_ipc_memory.py | !multimodal_reserve | frontend multimodal GPU decoding reserves
    frontend multimodal GPU decoding reserves {mm_reserved:gib} GiB .{0,200}?but only {available_kv:gib} GiB is
    available for the KV cache
mamba_block | 0.9.2..0.9.2 | v1/worker/gpu_model_runner.py | !page_size | Attention block size should be increased
    Attention block size should be increased to at least {block_size_needed:count}
pages | 0.12.0..0.33.0 | v1/core/kv_cache_utils.py | !page_size | is not divisible by the maximum page size
    page size (?:of the layer )?is not divisible by the maximum page size
layout | 0.29.0..0.33.0 | v1/core/kv_cache_utils.py | !page_size | cannot express this model's mixed page sizes
    KV cache layout \S+ cannot express this model's mixed page sizes
hybrid_disabled | 0.9.2..0.26.0 | v1/core/kv_cache_utils.py | !page_size | manager is disabled but failed
    Hybrid KV cache manager is disabled but failed to convert
cuda_oom | 0.6.6..0.33.0 | torch | !out_of_memory | out of memory. Tried to allocate
    out of memory\. Tried to allocate {oom_wanted:size}(?:.{0,200}? total capacity of {oom_total:size} of which
    {oom_free:size} is free)?
killed | 0.6.6..0.33.0 | the kernel | !killed | Killed
    ^\W*Killed\W*$|: Killed process \d+
sigkill | 0.8.5..0.33.0 | the kernel | !killed | SIGKILL
    \bdied with <Signals\.SIGKILL|\bexit(?:ed with)? code -9\b.{0,40}SIGKILL

# ends that are not about memory, or not only
core_failed | 0.8.5..0.33.0 | v1/engine/utils.py | @failed | ngine core initialization failed
    Engine core initialization failed
core_failed_start | 0.8.5..0.33.0 | v1/engine/core.py | @failed | EngineCore failed to start
    EngineCore failed to start
core_exception | 0.8.5..0.33.0 | v1/engine/core.py | @failed | EngineCore hit an exception
    EngineCore hit an exception
core_fatal | 0.8.5..0.33.0 | v1/engine/core.py | @failed | EngineCore encountered a fatal error
    EngineCore encountered a fatal error
worker_failed | 0.8.5..0.33.0 | v1/executor/multiproc_executor.py | @failed | WorkerProc failed to start
    WorkerProc failed to start
worker_init | 0.8.5..0.33.0 | v1/executor/multiproc_executor.py | @failed | WorkerProc initialization failed
    WorkerProc initialization failed
method_failed | 0.6.6..0.33.0 | worker/worker_base.py | @failed | Error executing method
    Error executing method '?{failed_method:word}
v0_failed | 0.6.6..0.10.2 | entrypoints/openai/api_server.py | @failed | Engine process failed to start
    Engine process failed to start
"""
