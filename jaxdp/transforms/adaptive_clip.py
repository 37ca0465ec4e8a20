"""A clip norm that follows a quantile of the gradient norms, as an Optax link."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import _random, _validate
from jaxdp.clipping.clipped_sum import ClippedSum
from jaxdp.transforms import _checks

# Where clipped_grad takes a threshold, and the powers of two that the adapted one stays between:
# these are the same number in every float type.
_SMALLEST, _LARGEST = 1e-30, 1e30
_LOWEST, _HIGHEST = 2.0**-99, 2.0**99


class AdaptiveClipState(NamedTuple):
    """Where the threshold stands, and the stream of its counts' noise."""

    key: jax.Array  # scalar PRNG key, fixed for the run
    step: jax.Array  # int32 scalar, counts released so far
    clip_norm: Any  # float scalar, or pytree of them: what to clip with now. Private: see below


# Compiled by itself, so that the same threshold comes out in any program.
@jax.jit
def _adapt(clip_norm, counts, unit_noise, stddev, expected_batch_size, target, learning_rate):
    unit_noise = jax.lax.optimization_barrier(unit_noise)

    def adapt(threshold, count, z):
        fraction = (count + stddev * z) / expected_batch_size + 0.5
        factor = jnp.exp(-learning_rate * (fraction - target))
        return jnp.clip(threshold * factor, _LOWEST, _HIGHEST).astype(threshold.dtype)

    return jax.tree.map(adapt, clip_norm, counts, unit_noise)


def adaptive_clip_norm(
    initial_clip_norm: Any,
    *,
    target_quantile: Any = 0.5,
    learning_rate: Any = 0.2,
    count_noise_multiplier: Any,
    expected_batch_size: Any,
    key: jax.Array,
) -> optax.GradientTransformationExtraArgs:
    r"""Adapts the clip norm to a quantile of the gradient norms, by a noisy count each step.

    The first link of a private chain. It hands the ``ClippedSum`` on as it is (the noise after
    it follows the threshold that was applied, which the sum carries) and updates the threshold
    for the next step, with :math:`E` the expected batch size, :math:`\gamma` the quantile:

    .. math::
        \tilde b = \frac{1}{E}\Big(\sum_i (b_i - \tfrac12) + \mathcal{N}(0, \sigma_b^2)\Big)
        + \tfrac12, \qquad C \leftarrow C\, e^{-\eta (\tilde b - \gamma)}.

    With a pytree of m thresholds each count has noise of standard deviation
    :math:`\sigma_b \sqrt m`, so that all together cost what one alone would.

    A step then reads the threshold, clips, counts and updates (see the example): ``update``
    takes the count as the extra argument ``within=``.

    Args:
      initial_clip_norm: The first threshold, in the unit of the gradient, in [1e-30, 1e30]; or
        a pytree prefix of the parameters, to adapt one for each subtree. It may be traced.
      target_quantile: Share of the examples that should not be clipped, in [0, 1].
      learning_rate: Step of the threshold's logarithm, > 0.
      count_noise_multiplier: sigma_b, standard deviation of the noise on the count in examples,
        >= 0 (a twentieth of the expected batch size is usual). Since one example moves the
        count by 1/2, the count is a Gaussian mechanism of multiplier 2 sigma_b.
      expected_batch_size: Examples in a batch on average, > 0: a public constant, never the
        realised size. The threshold follows the quantile only as far as it is true.
      key: Scalar typed PRNG key. One key, one run; it may be the noise link's.

    Returns:
      A transformation whose state is an ``AdaptiveClipState``; ``clip_norm(opt_state)`` reads
      the threshold to use for the next step.

    Raises:
      ValueError: if an argument is out of range, the thresholds are no prefix of the
        parameters, an update is not a ``ClippedSum``, or ``within`` is not one that
        ``count_within`` made for these thresholds.

    Guarantee:
      One update releases the counts by a Gaussian mechanism of multiplier 2 sigma_b, for the
      unit and neighbouring relation of the counts. The thresholds are post-processing of these:
      as private as the model. With ``add_gaussian_noise(split_noise_multiplier(z, sigma_b))``
      behind it in the chain, one step is ``Gaussian(z)``: give that event to the accountant.
      An adapted threshold saturates at 2^-99 and 2^99, inside the range that ``clipped_grad``
      takes; a traced initial one out of range is NaN, which shows in sums and noise.

    Example:
      >>> import jax, jax.numpy as jnp, optax, jaxdp
      >>> from jaxdp import transforms
      >>> key, params, x = jax.random.key(0), jnp.zeros(2), jnp.ones((16, 2))
      >>> tx = optax.chain(
      ...     transforms.adaptive_clip_norm(
      ...         0.1, count_noise_multiplier=1.0, expected_batch_size=16, key=key),
      ...     jaxdp.add_gaussian_noise(transforms.split_noise_multiplier(1.0, 1.0), key=key),
      ...     jaxdp.scale_by_batch_size(16), optax.sgd(1.0))
      >>> state = tx.init(params)
      >>> norm = transforms.clip_norm(state)
      >>> grad_fn = jaxdp.clipped_grad(jnp.vdot, l2_clip_norm=norm, return_per_example=True)
      >>> clipped, per_example = grad_fn(params, x)
      >>> within = transforms.count_within(per_example.norm, norm, None)
      >>> updates, state = tx.update(clipped, state, params, within=within)
      >>> bool(transforms.clip_norm(state) > 0.1)  # all were clipped
      True

    References:
      Andrew et al. 2021, arXiv:1905.03871, Algorithm 1 (b~ there is divided by the cohort of a
      fixed size); McMahan et al. 2018, arXiv:1812.06210 (one threshold a layer).
    """
    for path, norm in jax.tree_util.tree_leaves_with_path(initial_clip_norm):
        where = "initial_clip_norm" + jax.tree_util.keystr(path)
        _validate.positive(where, norm)
        if not _validate.is_traced(norm) and not _SMALLEST <= float(norm) <= _LARGEST:
            _validate.refuse(where, norm, f"a number in [{_SMALLEST}, {_LARGEST}]")
    _validate.probability("target_quantile", target_quantile)
    _validate.positive("learning_rate", learning_rate)
    _validate.non_negative("count_noise_multiplier", count_noise_multiplier)
    if jnp.result_type(count_noise_multiplier).itemsize < 4:
        # Rounded to fewer bits, it may be less than what was accounted for.
        allowed = "a float32 or wider"
        _validate.refuse("count_noise_multiplier", count_noise_multiplier, allowed)
    _validate.positive("expected_batch_size", expected_batch_size)
    _validate.key("key", key)
    structure: Any = jax.tree.structure(initial_clip_norm)

    def first(norm):
        # A buffer of its own, which a donated state may give up.
        threshold = jnp.array(norm, jnp.result_type(float), copy=True)
        in_range = (threshold >= _SMALLEST) & (threshold <= _LARGEST)
        return jnp.where(in_range, threshold, jnp.nan)

    def init(params):
        _checks.no_masked_leaves("adaptive_clip_norm", params)
        try:
            structure.flatten_up_to(params)
        except ValueError:
            allowed = f"a number, or a pytree prefix of {jax.tree.structure(params)}"
            _validate.refuse("initial_clip_norm", initial_clip_norm, allowed)
        thresholds = jax.tree.map(first, initial_clip_norm)
        return AdaptiveClipState(_random.copy(key), jnp.zeros((), jnp.int32), thresholds)

    def update(updates, state, params=None, *, within=None, **extra_args):
        del params, extra_args
        _checks.clipped_sum("adaptive_clip_norm", updates)
        counts = _counts(within, structure)
        root = jax.random.fold_in(state.key, _random.ADAPTIVE)
        unit_noise = _random.normal_like(jax.random.fold_in(root, state.step), counts)
        thresholds = _adapt(
            state.clip_norm,
            counts,
            unit_noise,
            2 * count_noise_multiplier * within.l2_sensitivity,
            expected_batch_size,
            target_quantile,
            learning_rate,
        )
        return updates, AdaptiveClipState(state.key, state.step + 1, thresholds)

    return optax.GradientTransformationExtraArgs(init, update)


def _counts(within: Any, structure: Any) -> Any:
    if not isinstance(within, ClippedSum):
        raise ValueError(
            "within must be the ClippedSum that count_within returns, as in tx.update(clipped, "
            "state, params, within=count_within(per_example.norm, clip_norm, is_padding)), got "
            f"a {type(within).__name__}: a bare number has no bounded sensitivity."
        )
    given = jax.tree.structure(within.value)
    if given != structure or any(jnp.ndim(leaf) for leaf in jax.tree.leaves(within.value)):
        _validate.refuse("within", given, f"of one count for each threshold, that is {structure}")
    return within.value


def clip_norm(opt_state: Any) -> Any:
    """The threshold to clip the next step's gradients with.

    Args:
      opt_state: An optimizer state with one ``AdaptiveClipState`` somewhere in it.

    Returns:
      A float scalar, or a pytree of them as ``adaptive_clip_norm`` was given: the
      ``l2_clip_norm`` (or ``l1_clip_norm``) of ``clipped_grad``.

    Raises:
      ValueError: if ``opt_state`` holds no ``AdaptiveClipState``, or more than one.

    Guarantee:
      Post-processing of noisy counts: as private as the model.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxdp import transforms
      >>> tx = transforms.adaptive_clip_norm(
      ...     0.5, count_noise_multiplier=5.0, expected_batch_size=100, key=jax.random.key(0))
      >>> float(transforms.clip_norm(tx.init(jnp.zeros(3))))
      0.5

    References:
      Andrew et al. 2021, arXiv:1905.03871, Algorithm 1.
    """
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, AdaptiveClipState))
    found = [node for node in nodes if isinstance(node, AdaptiveClipState)]
    if len(found) != 1:
        raise ValueError(
            f"opt_state must hold exactly one AdaptiveClipState, got {len(found)}: put "
            "adaptive_clip_norm first in the private chain."
        )
    return found[0].clip_norm
