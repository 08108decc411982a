"""Types whose code lives with their checkpoints (trust_remote_code)."""

from __future__ import annotations
