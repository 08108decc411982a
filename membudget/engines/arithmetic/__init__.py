"""Four buckets in all of the memory: nobody's rules."""
