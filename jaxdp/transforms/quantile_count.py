"""How many examples the clip norm leaves as they are, as a sum of known sensitivity and cost."""

import fractions
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate
from jaxdp.clipping.clipped_sum import ClippedSum


def _float32_above(number: float) -> float:
    """The smallest float32 that is at least the number."""
    nearest = np.float32(number)
    # As floats: NumPy would compare the two as float32.
    up = nearest if float(nearest) >= number else np.nextafter(nearest, np.float32(math.inf))
    return float(up)


def split_noise_multiplier(noise_multiplier: Any, count_noise_multiplier: Any) -> Any:
    r"""The noise multiplier that is left for the gradients once a count has had its share.

    A step that releases a sum of gradients with multiplier :math:`z_\Delta`, and the counts of
    ``count_within`` with standard deviation :math:`\sigma_b`, is one Gaussian mechanism of
    multiplier :math:`z` if

    .. math:: z_\Delta = \left(z^{-2} - (2 \sigma_b)^{-2}\right)^{-1/2}.

    Args:
      noise_multiplier: z, what the accountant is told, >= 0; it may be traced.
      count_noise_multiplier: sigma_b, >= 0, as ``adaptive_clip_norm`` takes it; it may be traced.

    Returns:
      The multiplier for ``add_gaussian_noise``, a float (a scalar array if an argument is
      traced, NaN where z >= 2 sigma_b then). Zero if z is zero: no noise, no guarantee.

    Raises:
      ValueError: if an argument is out of range, or z >= 2 sigma_b: the count alone would cost
        all that ``Gaussian(z)`` may, or more.

    Guarantee:
      Rounded up, and to a float32: that multiplier and a count noise multiplier rounded down to
      float32 together cost at most what ``Gaussian(noise_multiplier)`` does, for any sampling.

    Example:
      >>> from jaxdp import transforms
      >>> round(transforms.split_noise_multiplier(1.0, 1.0), 4)
      1.1547

    References:
      Andrew et al. 2021, arXiv:1905.03871, Theorem 1.
    """
    _validate.non_negative("noise_multiplier", noise_multiplier)
    _validate.non_negative("count_noise_multiplier", count_noise_multiplier)
    if _validate.is_traced((noise_multiplier, count_noise_multiplier)):
        return _split_traced(noise_multiplier, count_noise_multiplier)
    whole = float(noise_multiplier)
    if whole == 0.0:
        return 0.0
    # The count's noise is drawn in float32, whose multiplier may be the smaller one.
    count = 2 * min(float(count_noise_multiplier), float(np.float32(count_noise_multiplier)))
    if whole >= count:
        raise ValueError(
            f"noise_multiplier must be below twice count_noise_multiplier, got {noise_multiplier} "
            f"and {count_noise_multiplier}: the noisy count alone would cost all that the two "
            "releases may. Raise count_noise_multiplier (a twentieth of the expected batch size "
            "is usual)."
        )
    least_square = 1 / (1 / fractions.Fraction(whole) ** 2 - 1 / fractions.Fraction(count) ** 2)
    left = _float32_above(whole / math.sqrt((1 - whole / count) * (1 + whole / count)))
    while fractions.Fraction(left) ** 2 < least_square:
        left = float(np.nextafter(np.float32(left), np.float32(math.inf)))
    return left


def _split_traced(noise_multiplier: Any, count_noise_multiplier: Any) -> jax.Array:
    dtype = jnp.result_type(float)
    z, sigma_b = (jnp.asarray(x, dtype) for x in (noise_multiplier, count_noise_multiplier))
    share = (1 - z / (2 * sigma_b)) * (1 + z / (2 * sigma_b))
    # A share below a hundred-thousandth would be rounding: NaN, as where there is none.
    margin = 1 + 8 * jnp.finfo(dtype).eps / jnp.maximum(share, 1e-5)
    left = jnp.where(share >= 1e-5, z / jnp.sqrt(share) * margin, jnp.nan)
    return jnp.where(z == 0, jnp.zeros((), dtype), left)


def count_within(norms: Any, clip_norm: Any, is_padding: jax.Array | None) -> ClippedSum:
    r"""Counts the examples that the clip norm leaves as they are, as a sum of known sensitivity.

    Computes :math:`\sum_i (b_i - \tfrac12)`, with :math:`b_i = 1` if
    :math:`\|g_i\| \le C` and 0 otherwise. The shift halves what one example adds.

    Args:
      norms: Norm of each example's gradient before clipping, ``[batch]``, as ``clipped_grad``
        reports it with ``return_per_example``; or a pytree of such arrays like ``clip_norm``.
        A norm that is not finite counts as above the threshold.
      clip_norm: What the examples were clipped with: a scalar, or a pytree of m of them.
      is_padding: Bool ``[batch]``, True for examples that count for nothing; None if every row
        is an example. It has no default, since padding is reported with a norm of zero: counted
        as an example within, it would double what adding a real one changes.

    Returns:
      A ``ClippedSum`` of float scalars, one for each threshold, with the L2 sensitivity
      sqrt(m) / 2 of all together.

    Raises:
      ValueError: if the norms are no float arrays ``[batch]`` like the clip norm, or
        ``is_padding`` is not a bool array ``[batch]``.

    Guarantee:
      The sensitivity holds for one example added or removed. The sums are NOT private before
      ``adaptive_clip_norm`` has added its noise. Exact in any order of summation.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxdp import transforms
      >>> print(transforms.count_within(jnp.asarray([0.1, 0.5, 3.0]), 1.0, None))
      ClippedSum(Array(0.5, dtype=float32), l2_sensitivity=0.5)

    References:
      Andrew et al. 2021, arXiv:1905.03871, Section 2.2.
    """
    treedef: Any = jax.tree.structure(clip_norm)
    given: Any = jax.tree.structure(norms)
    if given != treedef:
        _validate.refuse("norms", given, f"of the clip norm's structure {treedef}")
    size = _validate.leading_axis("norms", _validate.float_tree("norms", norms))
    for path, leaf in jax.tree_util.tree_leaves_with_path(norms):
        if jnp.ndim(leaf) != 1:
            where = "norms" + jax.tree_util.keystr(path)
            _validate.refuse(where, f"shape {jnp.shape(leaf)}", f"of shape ({size},)")
    mask = jnp.zeros(size, bool) if is_padding is None else jnp.asarray(is_padding)
    if mask.shape != (size,) or mask.dtype != jnp.bool_:
        _validate.refuse("is_padding", is_padding, f"a bool array of shape ({size},)")

    def count(of_examples, threshold):
        halves = jnp.where(of_examples <= threshold, 1, -1)
        total = jnp.sum(jnp.where(mask, 0, halves), dtype=jnp.int32)
        return total.astype(jnp.result_type(float)) / 2

    value = jax.tree.map(count, norms, clip_norm)
    return ClippedSum(value, _float32_above(math.sqrt(treedef.num_leaves) / 2))
