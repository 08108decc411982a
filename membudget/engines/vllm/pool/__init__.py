"""vLLM's KV cache pool, to the block."""
