"""The sum of clipped per-example gradients, with its sensitivity as part of its type."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _validate

_SEALED = {jnp.dtype(jnp.float32): jnp.uint32, jnp.dtype(jnp.float64): jnp.uint64}
_UNSEALED = {jnp.dtype(bits): float_dtype for float_dtype, bits in _SEALED.items()}


def _seal(name: str, sensitivity: Any) -> jax.Array:
    """The sensitivity's bits as an integer, so that arithmetic on the pytree shows."""
    _validate.non_negative(name, sensitivity)
    number = jnp.asarray(sensitivity, jnp.result_type(float))
    bits = jax.lax.bitcast_convert_type(number, _SEALED[number.dtype])
    return jnp.stack([bits, _checksum(bits)], axis=-1)


def _checksum(bits: jax.Array) -> jax.Array:
    """A number that sums, scalings, signs or clips of sealed bits do not carry along."""
    mixed = (bits ^ (bits >> 15)) * jnp.asarray(0x2C1B3C6D, bits.dtype)
    return (mixed ^ (mixed >> 12)) ^ jnp.asarray(0x5BD1E995, bits.dtype)


def _unseal(name: str, bits: Any) -> jax.Array:
    dtype = jnp.result_type(bits)
    if dtype not in _UNSEALED:
        raise ValueError(
            f"{name} must be the one that clipping set, got a value of dtype {dtype}: some "
            "transformation between clipping and noise did arithmetic on the ClippedSum, and its "
            "sensitivity is no longer known. Put that transformation after the noise."
        )
    number_bits, checksum = bits[..., 0], bits[..., 1]
    number = jax.lax.bitcast_convert_type(number_bits, _UNSEALED[dtype])
    # Integer arithmetic keeps the dtype: what it made of the bits becomes NaN, and so the noise.
    return jnp.where(checksum == _checksum(number_bits), number, jnp.nan)


@jax.tree_util.register_pytree_with_keys_class
class ClippedSum:
    r"""A sum over examples in which no example weighs more than a known bound.

    Holds :math:`s = \sum_i c_i g_i` with :math:`\|c_i g_i\|_2 \le \Delta_2` for every
    example :math:`i` (and :math:`\|c_i g_i\|_1 \le \Delta_1` where an L1 bound is known).
    Noise is added to this type and to nothing else, so that an unclipped gradient, or a
    mean, cannot be mistaken for it.

    The bounds are leaves of the pytree (a threshold that is adapted inside the program
    reaches the noise), stored as the bits of a float with a checksum: a generic
    transformation that scales, adds or clips every leaf is refused at the noise, or turns the
    noise into NaN, instead of quietly changing the bound that the noise relies on.

    Args:
      value: Pytree of the sums, shaped like the parameters, float32 or wider.
      l2_sensitivity: Scalar >= 0, in the unit of the gradient: the most that one
        example adds to ``value`` in L2 norm over all leaves together.
      l1_sensitivity: The same in L1 norm, or None where no such bound is known.

    Raises:
      ValueError: if a sensitivity is negative or not finite; on reading a sensitivity
        that something between clipping and noise did arithmetic on.

    Guarantee:
      Whoever builds one vouches for its bounds: for neighbours that differ by adding or
      removing one example (or by replacing one with nothing). Replacing one example by
      another moves the sum by up to twice the bound.

    Example:
      >>> import jax.numpy as jnp, jaxdp
      >>> clipped = jaxdp.ClippedSum({"w": jnp.ones(3)}, l2_sensitivity=2.0)
      >>> float(clipped.l2_sensitivity)
      2.0
      >>> clipped.l1_sensitivity is None
      True

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1.
    """

    __slots__ = ("_l1_bits", "_l2_bits", "value")

    def __init__(self, value: Any, l2_sensitivity: Any, l1_sensitivity: Any = None):
        self.value = value
        self._l2_bits = _seal("l2_sensitivity", l2_sensitivity)
        self._l1_bits = None if l1_sensitivity is None else _seal("l1_sensitivity", l1_sensitivity)

    @property
    def l2_sensitivity(self) -> jax.Array:
        """The bound on one example's contribution in L2 norm, a float scalar."""
        return _unseal("l2_sensitivity", self._l2_bits)

    @property
    def l1_sensitivity(self) -> jax.Array | None:
        """The bound in L1 norm, a float scalar, or None if only L2 is bounded."""
        return None if self._l1_bits is None else _unseal("l1_sensitivity", self._l1_bits)

    def __repr__(self) -> str:
        bounds = [f"l2_sensitivity={self.l2_sensitivity}"]
        if self.l1_sensitivity is not None:
            bounds.append(f"l1_sensitivity={self.l1_sensitivity}")
        return f"ClippedSum({self.value!r}, {', '.join(bounds)})"

    def tree_flatten_with_keys(self):
        keys = (jax.tree_util.GetAttrKey(name) for name in ("value", "l2_bits", "l1_bits"))
        return tuple(zip(keys, (self.value, self._l2_bits, self._l1_bits), strict=True)), None

    def tree_flatten(self):
        return (self.value, self._l2_bits, self._l1_bits), None

    @classmethod
    def tree_unflatten(cls, _, children):
        # Past __init__: JAX also rebuilds pytrees from placeholders that are no numbers.
        clipped = object.__new__(cls)
        clipped.value, clipped._l2_bits, clipped._l1_bits = children
        return clipped
