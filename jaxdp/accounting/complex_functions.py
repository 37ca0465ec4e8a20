"""Elementary functions of complex arrays to full relative accuracy where they are small."""

import math

import jax
import jax.numpy as jnp


def exp_excess(x: jax.Array) -> jax.Array:
    """(e^x - 1 - x) / x^2 for real or complex x, |x| <= 1/2."""
    double = x.dtype in (jnp.float64, jnp.complex128)
    terms = 12 if double else 6
    series = jnp.full_like(x, 1.0 / math.factorial(terms + 2))
    for n in range(terms + 1, 1, -1):
        series = series * x + 1.0 / math.factorial(n)
    return series


def expm1(x: jax.Array) -> jax.Array:
    """e^x - 1 for complex x, to full accuracy where x is small."""
    small = jnp.abs(x) < 0.5
    near = jnp.where(small, x, 0.0)
    return jnp.where(small, near + near * near * exp_excess(near), jnp.exp(x) - 1.0)


def log(x: jax.Array) -> jax.Array:
    """log x for complex x; finite at 0, where there is nothing but rounding."""
    size = jnp.maximum(jnp.abs(x), math.sqrt(float(jnp.finfo(x.real.dtype).tiny)))
    return jax.lax.complex(jnp.log(size), jnp.arctan2(x.imag, x.real))


def _real_log1p(x: jax.Array) -> jax.Array:
    """log(1 + x) for real x; in float64 ``jnp.log1p`` loses two digits where x is some per cent."""
    if x.dtype != jnp.float64:
        return jnp.log1p(x)
    # By 2 artanh(y), whose series takes 10 terms up to |x| = 1/4.
    small = jnp.abs(x) <= 0.25
    y = jnp.where(small, x, 0.0) / (2.0 + jnp.where(small, x, 0.0))
    square, series = y * y, jnp.zeros_like(y)
    for n in range(19, 0, -2):
        series = series * square + 1.0 / n
    return jnp.where(small, 2.0 * y * series, jnp.log(1.0 + x))


def log1p(x: jax.Array) -> jax.Array:
    """log(1 + x) for complex x, to full accuracy where x is small."""
    real, imaginary = x.real, x.imag
    square = real * (2.0 + real) + imaginary * imaginary
    near = jnp.where(square > -0.5, square, 0.0)
    # Next to 0 there is nothing but rounding; the floor keeps the logarithm finite.
    size = jnp.maximum(jnp.square(1.0 + real) + imaginary * imaginary, jnp.finfo(real.dtype).tiny)
    size = 0.5 * jnp.where(square > -0.5, _real_log1p(near), jnp.log(size))
    return jax.lax.complex(size, jnp.arctan2(imaginary, 1.0 + real))
