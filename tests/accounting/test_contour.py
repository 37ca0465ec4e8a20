"""Losses at the nodes of a contour, against mpmath: no further off than their own bound says."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxdp.accounting import complex_functions, contour

# jax.enable_x64 is the newer name of the same scoped context manager.
if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:
    from jax.experimental import enable_x64

# q, sigma and the largest order less one: losses of a few per cent and of dozens, narrow and wide
# laws of z, next to no sampling and nearly all.
STEPS = [
    (2e-6, 0.4, 5.0),
    (1.1e-3, 14.1, 400.0),
    (0.011, 3.5, 30.0),
    (0.004, 290.0, 4e4),
    (0.25, 0.4, 2.0),
    (0.97, 1.3, 8.0),
]


@functools.cache
def evaluate(dtype):
    def at(q, s, most, shift, index):
        line = contour.contour(q, s, jnp.zeros((0,), dtype), most, jnp.asarray(True))
        return line, contour.nodes_at(line, index, shift)

    return jax.jit(at)


def true_loss(line, q, sigma, shift, index, node):
    """log(1 - q + q e^z) to 40 digits, at the very z that the node stands for."""
    with mpmath.workdps(40):
        deviation = 1 / mpmath.mpf(sigma)
        t = mpmath.mpf(float(line.spacing)) * (int(line.first) + contour.CHUNK * index + node)
        z = deviation * t - deviation**2 / 2 + 1j * deviation * mpmath.mpf(shift)
        return mpmath.log(1 + mpmath.mpf(q) * mpmath.expm1(z))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_losses_at_nodes_are_as_near_as_their_bound_says(step, double):
    with enable_x64(double):
        dtype = jnp.float64 if double else jnp.float32
        q, sigma, most = (dtype(number) for number in step)
        for share in (0.0, 0.7):
            shift = dtype(share * min(1.2 * float(sigma), 6.0))
            line, _ = evaluate(dtype)(q, sigma, most, shift, 0)
            chunks = int(line.chunks)
            assert 1 <= chunks < contour.MOST_NODES // contour.CHUNK
            for index in sorted({0, chunks // 2, chunks - 1}):
                _, found = evaluate(dtype)(q, sigma, most, shift, index)
                for node in range(0, contour.CHUNK, 13):
                    numbers = (float(number) for number in (q, sigma, shift))
                    true = true_loss(line, *numbers, index, node)
                    off = abs(mpmath.mpc(complex(found.loss[node])) - true)
                    assert off <= float(found.loss_off[node]) * float(jnp.finfo(dtype).eps)


def test_the_logarithm_next_to_1_keeps_its_digits_in_float64():
    x = np.concatenate([np.linspace(-0.499, 2.0, 400), np.geomspace(1e-9, 0.3, 200)])
    with enable_x64(True):
        found = np.asarray(jax.jit(complex_functions.log1p)(x + 0j)).real
    # |1 + x|^2 - 1, its logarithm, and half of it: five roundings; ``jnp.log1p`` alone is off by
    # a hundred where x is 0.01.
    for at, value in zip(x, found, strict=True):
        with mpmath.workdps(40):
            true = mpmath.log(1 + mpmath.mpf(at))
            if abs(2 * at + at * at) < 0.5:
                assert abs(mpmath.mpf(value) - true) <= 5 * np.finfo(float).eps * abs(true)
