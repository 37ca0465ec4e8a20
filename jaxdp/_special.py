"""Special functions for privacy accounting that neither JAX nor NumPy has."""

import jax
import jax.numpy as jnp

# 1/2!, 1/3!, ...: enough of them for exp(x) - 1 - x to full float64 accuracy on |x| <= 1.
_TAYLOR = [1.0 / 2.0]
while _TAYLOR[-1] > 1e-18:
    _TAYLOR.append(_TAYLOR[-1] / (len(_TAYLOR) + 2))


def scaled_exp_excess(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The curvature of the exponential, :math:`g(x) = (e^x - 1 - x) / x^2`, in scaled form.

    Returns ``(mantissa, exponent)`` with :math:`g(x) = \text{mantissa} \cdot e^{\text{exponent}}`,
    mantissa positive and free of cancellation, exponent zero unless x > 1: nothing overflows.
    """
    small = jnp.abs(x) < 1.0
    near = jnp.where(small, x, 0.0)
    terms = _TAYLOR if x.dtype == jnp.float64 else _TAYLOR[:9]
    series = jnp.full_like(near, terms[-1])
    for coefficient in reversed(terms[:-1]):
        series = series * near + coefficient
    far = jnp.where(small, 2.0, x)
    decay = jnp.exp(-jnp.abs(far))
    closed = jnp.where(far > 0.0, 1.0 - (1.0 + far) * decay, decay - 1.0 - far) / (far * far)
    return jnp.where(small, series, closed), jnp.where(x >= 1.0, x, 0.0)


def log_bernoulli_excess(log_ratio: jax.Array, t: jax.Array) -> jax.Array:
    r"""Log of :math:`[(1+u)^{1+t} - 1 - (1+t) u] / t`, with ``log_ratio`` = :math:`\log(1+u)`.

    By Bernoulli's inequality the bracket is non-negative. With :math:`L = \log(1+u)` it is
    :math:`e^L L^2 [t^2 g(tL) + t g(-L)]`, g the curvature of the exponential: both terms are
    positive, so nothing cancels however small or large u and t > 0 are.
    """
    tiny = jnp.finfo(log_ratio.dtype).tiny
    log_ratio = jnp.where(jnp.abs(log_ratio) < tiny, tiny, log_ratio)
    first, exponent = scaled_exp_excess(t * log_ratio)
    second, shift = scaled_exp_excess(-log_ratio)
    total = t * first + second * jnp.exp(shift - exponent)
    return log_ratio + exponent + 2.0 * jnp.log(jnp.abs(log_ratio)) + jnp.log(total)


def log_expm1(x: jax.Array) -> jax.Array:
    """Log of exp(x) - 1 for x > 0, without overflow or cancellation."""
    return jnp.where(x > 1.0, x, 0.0) + jnp.log(
        jnp.where(x > 1.0, -jnp.expm1(-x), jnp.expm1(jnp.minimum(x, 1.0)))
    )


def log_complement(p: jax.Array) -> jax.Array:
    """Log of 1 - p for 0 <= p <= 1, to two units in the last place.

    XLA's float64 log1p is off by up to 120 units near p = 0.41; there log(1 - p) is not.
    """
    return jnp.where(p > 0.25, jnp.log(1.0 - p), jnp.log1p(-p))
