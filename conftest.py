"""How JAX runs in every test: strictly, on eight virtual devices, compiling a program once."""

import os

# Read once, when JAX first starts its CPU backend.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


def pytest_configure(config):
    """Keeps programs that take long to compile for the other workers and for the next run."""
    cache = getattr(config, "cache", None)
    # What jaxlib 0.6.0 reads back computes something else (see jaxdp/_precision.py).
    reliable = jax.__version_info__ >= (0, 10)
    if reliable and cache is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("jax-programs")))
    # A worker may find what another one has half written: then it compiles the program itself.
    config.addinivalue_line("filterwarnings", "ignore:.*persistent compilation cache")
