"""What vLLM leaves for the pool."""
