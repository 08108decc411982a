"""vLLM's logs: text -> figures -> explanation -> what would start."""
