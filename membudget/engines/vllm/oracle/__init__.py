"""An installed vLLM, asked."""
