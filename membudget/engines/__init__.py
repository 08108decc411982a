"""What engines really allocate: activations, transformers' caches, llama.cpp's cells, vLLM's pool."""
