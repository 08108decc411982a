"""Asks a real llama.cpp, prebuilt, about a model of any size: nothing is read, nothing is allocated."""

from __future__ import annotations

from membudget.engines.llama_cpp.oracle.asking import Answer, ask, ask_file, file_types
from membudget.engines.llama_cpp.oracle.library import INSTALL, Library, LibraryMissing, OracleError, find_library

__all__ = [
    "INSTALL", "Answer", "Library", "LibraryMissing", "OracleError", "ask", "ask_file", "file_types", "find_library",
]  # fmt: skip
