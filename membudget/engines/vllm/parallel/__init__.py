"""What each rank of a tensor- and pipeline-parallel vLLM holds."""
