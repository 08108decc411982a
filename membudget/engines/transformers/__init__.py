"""transformers: caches and activations."""
