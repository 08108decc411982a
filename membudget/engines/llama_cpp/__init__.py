"""llama.cpp: cells, compute buffers, offload, logs."""
