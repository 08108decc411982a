"""Finds a prebuilt libllama: npm's @node-llama-cpp/linux-x64, in a cache folder or where MEMBUDGET_LLAMA says.

    npm install --prefix ~/.cache/membudget/llama.cpp @node-llama-cpp/linux-x64@3.21.1

Version 3.21.1 of the package has llama.cpp v0.4.0 (MIT).  Its structs are what `child` passes, so another build is
refused: by the names of its files here, by what ``llama_version()`` says in the child, before anything else is called.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from membudget.errors import MembudgetError, NotAvailableError

ENV = "MEMBUDGET_LLAMA"
PACKAGE, PACKAGE_VERSION = "@node-llama-cpp/linux-x64", "3.21.1"
#: What llama.cpp is called in the files' names, and what its ``llama_version()`` says.
TAG, VERSION = "v0.4.0", "0.4.0-dev"
INSTALL = f"npm install --prefix ~/.cache/membudget/llama.cpp {PACKAGE}@{PACKAGE_VERSION}"
INSTALL_VULKAN = f"npm install --prefix ~/.cache/membudget/llama.cpp {PACKAGE}-vulkan@{PACKAGE_VERSION}"
#: Where Debian's mesa-vulkan-drivers say that a software GPU is.
LAVAPIPE = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"


class OracleError(MembudgetError):
    """llama.cpp refused the file or a setting: the text ends with its own words."""


class LibraryMissing(NotAvailableError):
    """No libllama here, or another build than the one whose structs are known."""


@dataclass(frozen=True)
class Library:
    """A folder of shared objects.  vulkan: the build that also has a GPU backend."""

    #: where libllama lies
    folder: str
    #: whether it is the build with Vulkan
    vulkan: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What its process needs beside the usual: the one software GPU, for the build with Vulkan."""
        if not self.vulkan:
            return {}
        return {"VK_ICD_FILENAMES": LAVAPIPE, "GGML_VK_VISIBLE_DEVICES": "0"}


def cache_folder() -> str:
    """Where the documented command installs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "membudget", "llama.cpp")


def find_library(given: str | None = None, *, vulkan: bool = False) -> Library:
    """The library to ask: `given`, else MEMBUDGET_LLAMA, else the cache folder; a folder or a file in it.

    Raises `LibraryMissing` with the command that installs it, or naming the build that was found.
    """
    name = "linux-x64-vulkan" if vulkan else "linux-x64"
    flavour = ".vulkan" if vulkan else ""
    wanted = f"libllama{flavour}.{TAG}.so"
    install = INSTALL_VULKAN if vulkan else INSTALL
    start = given or os.environ.get(ENV) or cache_folder()
    start = os.path.dirname(start) if os.path.isfile(start) else start
    inside = (start, os.path.join(start, "bins", name), os.path.join(start, "node_modules", "@node-llama-cpp", name))
    for folder in (*inside, os.path.join(inside[2], "bins", name)):
        if os.path.isfile(os.path.join(folder, wanted)):
            if vulkan and not os.path.isfile(LAVAPIPE):
                raise LibraryMissing(
                    "the build with Vulkan is here, a software GPU is not: install mesa-vulkan-drivers",
                    code="no_software_gpu",
                )
            return Library(folder, vulkan)
    for folder in (*inside, os.path.join(inside[2], "bins", name)):
        others = [file for file in _files(folder) if file.startswith("libllama") and "common" not in file]
        if others:
            raise LibraryMissing(
                f"{folder}: {', '.join(others)}; asked is {wanted} alone, whose structs are known. {install}",
                code="another_llama_cpp",
            )
    raise LibraryMissing(f"no libllama to ask: {install}\nor name its folder: {ENV}, --llama", code="no_llama_cpp")


def _files(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
