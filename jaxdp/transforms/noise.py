"""Independent noise as an Optax link: a clipped sum goes in, a private sum comes out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import _random, _validate, noise
from jaxdp.transforms import _checks

NoiseMultiplier = float | jax.Array | Callable[[jax.Array], Any]


class GaussianNoiseState(NamedTuple):
    """Where the stream of Gaussian noise stands."""

    key: jax.Array  # scalar PRNG key, fixed for the run
    step: jax.Array  # int32 scalar, releases made so far


class LaplaceNoiseState(NamedTuple):
    """Where the stream of Laplace noise stands."""

    key: jax.Array  # scalar PRNG key, fixed for the run
    step: jax.Array  # int32 scalar, releases made so far


def _check_multiplier(noise_multiplier: Any) -> Any:
    _validate.non_negative("noise_multiplier", noise_multiplier)
    # optax.inject_hyperparams casts its numbers to the parameters' dtype unless told not to,
    # and a multiplier that was rounded down adds less noise than was accounted for.
    if jnp.result_type(noise_multiplier).itemsize < 4:
        _validate.refuse(
            "noise_multiplier",
            noise_multiplier,
            "a float32 or wider (inject_hyperparams takes hyperparam_dtype=jnp.float32)",
        )
    return noise_multiplier


def _multiplier_at(noise_multiplier: NoiseMultiplier, step: jax.Array) -> Any:
    if not callable(noise_multiplier):
        return noise_multiplier
    return _check_multiplier(noise_multiplier(step))


# The noisy sum comes out the same bit for bit in any program, compiled by the caller or not:
# the product and the sum are always compiled together (so rounded alike), and the barrier
# keeps the compiler from moving the scale into the arithmetic that drew the noise.
@jax.jit
def _add(value: Any, unit_noise: Any, scale: jax.Array) -> Any:
    unit_noise = jax.lax.optimization_barrier(unit_noise)
    return jax.tree.map(
        lambda leaf, z: jnp.asarray(leaf, z.dtype) + scale.astype(z.dtype) * z, value, unit_noise
    )


def add_gaussian_noise(
    noise_multiplier: NoiseMultiplier, *, key: jax.Array, precompute_steps: int = 1
) -> optax.GradientTransformation:
    r"""Adds Gaussian noise scaled to the L2 sensitivity that a clipped sum carries.

    Turns ``ClippedSum(value, l2_sensitivity)`` into ``value + z`` with
    :math:`z \sim \mathcal{N}(0, (\sigma \Delta_2)^2 I)`, :math:`\sigma` the noise
    multiplier at this step and :math:`\Delta_2` the L2 sensitivity.

    Args:
      noise_multiplier: Standard deviation over L2 sensitivity, dimensionless, >= 0; or a
        function from the step (int32 scalar) to it.
      key: Scalar typed PRNG key. One key, one run: step ``t`` draws from
        ``noise.gaussian(key, t)``, so a resumed run goes on where it stopped, and a fresh
        ``init`` with the same key is the same run again.
      precompute_steps: Static integer >= 1. Above 1, the noise of that many steps is drawn
        ahead in one block, kept in the state: the same bits, that many times the memory.

    Returns:
      A transformation from a ``ClippedSum`` to a pytree shaped like its value, in float32
      or wider.

    Raises:
      ValueError: if ``noise_multiplier`` is negative or not finite, ``key`` is not a scalar
        typed key, an update is not a ``ClippedSum``, or leaves were masked away.

    Guarantee:
      One update is a Gaussian mechanism with this multiplier, for the unit and the
      neighbouring relation of the clipped sum (one example added or removed). Noise is
      drawn in float32: finite precision is not part of the proof.

    Example:
      >>> import jax, jax.numpy as jnp, jaxdp
      >>> tx = jaxdp.add_gaussian_noise(1.0, key=jax.random.key(0))
      >>> clipped = jaxdp.ClippedSum({"w": jnp.zeros(3)}, l2_sensitivity=1.0)
      >>> noisy, state = tx.update(clipped, tx.init(clipped.value))
      >>> int(state.step)
      1

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy,
      Appendix A; Abadi et al. 2016, arXiv:1607.00133, Algorithm 1.
    """
    if not callable(noise_multiplier):
        _check_multiplier(noise_multiplier)
    _validate.key("key", key)
    precompute_steps = _validate.integer("precompute_steps", precompute_steps, minimum=1)

    def init(params):
        _checks.no_masked_leaves("add_gaussian_noise", params)
        if precompute_steps > 1:
            return noise.precompute(_random.copy(key), params, precompute_steps)
        return GaussianNoiseState(_random.copy(key), jnp.zeros((), jnp.int32))

    def draw(state, like):
        if precompute_steps > 1:
            return noise.take(state)
        return noise.gaussian(state.key, state.step, like), state._replace(step=state.step + 1)

    def update(updates, state, params=None):
        del params
        clipped = _checks.clipped_sum("add_gaussian_noise", updates)
        _checks.no_masked_leaves("add_gaussian_noise", clipped.value)
        stddev = _multiplier_at(noise_multiplier, state.step) * clipped.l2_sensitivity
        unit_noise, state = draw(state, clipped.value)
        return _add(clipped.value, unit_noise, stddev), state

    return optax.GradientTransformation(init, update)


def add_laplace_noise(
    noise_multiplier: NoiseMultiplier, *, key: jax.Array
) -> optax.GradientTransformation:
    r"""Adds Laplace noise scaled to the L1 sensitivity that a clipped sum carries.

    Turns ``ClippedSum(value, l1_sensitivity=...)`` into ``value + z`` with independent
    entries of density :math:`\propto e^{-|z| / (b \Delta_1)}`, :math:`b` the noise
    multiplier at this step and :math:`\Delta_1` the L1 sensitivity.

    Args:
      noise_multiplier: Laplace scale over L1 sensitivity, dimensionless, >= 0 (one release
        costs epsilon = 1/b); or a function from the step (int32 scalar) to it.
      key: Scalar typed PRNG key. One key, one run.

    Returns:
      A transformation from a ``ClippedSum`` that bounds L1 to a pytree shaped like its
      value, in float32 or wider.

    Raises:
      ValueError: if ``noise_multiplier`` is negative or not finite, ``key`` is not a scalar
        typed key, an update is not a ``ClippedSum`` or bounds L2 only, or leaves were
        masked away.

    Guarantee:
      One update is a Laplace mechanism with this multiplier, for the unit and the
      neighbouring relation of the clipped sum. An L2 bound is no substitute: in d
      dimensions the L1 norm is up to sqrt(d) times the L2 norm.

    Example:
      >>> import jax, jax.numpy as jnp, jaxdp
      >>> tx = jaxdp.add_laplace_noise(2.0, key=jax.random.key(0))
      >>> clipped = jaxdp.ClippedSum(jnp.zeros(3), l2_sensitivity=1.0, l1_sensitivity=1.0)
      >>> noisy, state = tx.update(clipped, tx.init(clipped.value))
      >>> noisy.shape
      (3,)

    References:
      Dwork et al. 2006, Calibrating noise to sensitivity in private data analysis.
    """
    if not callable(noise_multiplier):
        _check_multiplier(noise_multiplier)
    _validate.key("key", key)

    def init(params):
        _checks.no_masked_leaves("add_laplace_noise", params)
        return LaplaceNoiseState(_random.copy(key), jnp.zeros((), jnp.int32))

    def update(updates, state, params=None):
        del params
        clipped = _checks.clipped_sum("add_laplace_noise", updates)
        _checks.no_masked_leaves("add_laplace_noise", clipped.value)
        l1_sensitivity = clipped.l1_sensitivity
        if l1_sensitivity is None:
            raise ValueError(
                "add_laplace_noise expects a ClippedSum with an l1_sensitivity, got one that "
                "bounds the L2 norm only: clip with l1_clip_norm=..., or use add_gaussian_noise."
            )
        scale = _multiplier_at(noise_multiplier, state.step) * l1_sensitivity
        unit_noise = noise.laplace(state.key, state.step, clipped.value)
        return _add(clipped.value, unit_noise, scale), state._replace(step=state.step + 1)

    return optax.GradientTransformation(init, update)
