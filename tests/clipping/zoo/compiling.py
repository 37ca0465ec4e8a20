"""A jit that compiles fast, for tests whose subject is no machine code."""

import functools

import jax

# XLA's own passes run as ever. LLVM's, and MLIR's way of writing fused loops, which are left
# out, take most of the time.
compiled = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    },
)
