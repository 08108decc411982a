"""vLLM: its KV pool predicted, its logs read, an installed one asked."""
