"""This machine: memory, GPUs, processes, and one way to run a command."""
