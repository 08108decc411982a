"""What a user types, found: a folder, a file, a hub id, the cache."""
