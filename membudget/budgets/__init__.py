"""YAML -> Budget."""
