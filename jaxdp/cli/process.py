"""The process of the command line: started for one answer, on the CPU."""

import os
import pathlib
import platform
import sys
import warnings

import jax

from jaxdp import _precision
from jaxdp.cli.commands import main


def _cache_folder() -> pathlib.Path | None:
    """Where compiled programs are kept for the next call; None where nothing can or may be kept.

    One folder a machine: a home may be shared, but compiled code fits one kind of processor.
    """
    if not _precision.CACHE_IS_RELIABLE:
        return None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        caches = pathlib.Path(base) if base else pathlib.Path.home() / ".cache"
        folder = caches / "jaxdp" / (platform.node() or "machine")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    return folder if os.access(folder, os.W_OK) else None


def run() -> int:
    """Answers the command line of this process.

    A single number needs no accelerator, which takes seconds to start and may be in use. What
    was compiled is kept in the user's cache folder; a cache that fails costs time, no answer.
    """
    # The process belongs to the command, so its JAX may be configured: here, before a backend
    # starts, and not on import, for a program that uses the library decides for itself.
    # Environment variables would come too late: JAX, which jaxdp imports, reads them on import.
    jax.config.update("jax_platforms", "cpu")
    folder = _cache_folder()
    if folder is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    warnings.filterwarnings("ignore", message=".*persistent compilation cache")
    return main(sys.argv[1:])
