r"""Privacy-loss laws of single steps, moved outward onto an equispaced grid.

For a dominating pair (P, Q) the loss is :math:`y = \log dP/dQ`. Its law under P, together with
:math:`dQ = e^{-y} dP`, says everything: delta(eps) is the mean of (1 - e^(eps - y))_+ under P.

**Pessimistic.** A cell [y_i, y_i + h] with the P-mass p and the Q-mass q gives the masses

.. math:: w_{up} = (p - q e^{y_i}) / (1 - e^{-h}), \qquad w_{down} = p - w_{up}

to its two ends, which keeps p and q (Doroshenko et al. 2022, "connect the dots"). Under Q the
ratio e^y is thereby spread at an unchanged mean, so the mean of every convex function of it grows,
(e^y - alpha)_+ among them for every alpha: the new pair dominates the old one, and dominance
survives composition. What lies below the grid moves up to its first point, what lies above moves
to an infinite loss: both increase the loss, and with it delta.

**Rounding.** Narrow cells are integrated by Gauss-Legendre, all terms positive; in wide ones
p - q e^{y_i} is taken from the difference of the two base laws, which is small where losses are.
So a computed mass is the mass of a law whose losses are off by a few ulps, times 1 + a few ulps:
``LOCATION_ULPS`` and ``MASS_ULPS`` bound the two, and whoever composes laws pays for them.

Three maps make a loss y out of the loss z of the mechanism itself: removing an example from
a sample of rate q gives :math:`\log(1 - q + q e^z)`, adding one its negative under Q.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc

LOCATION_ULPS = 512.0
MASS_ULPS = 512.0
# An atom this near to a grid point, in units of the spacing, is moved onto it.
SNAP = 2.0**-30

_NODES, _WEIGHTS = (0.5 * part for part in np.polynomial.legendre.leggauss(6))
_SQRT_HALF = math.sqrt(0.5)


class Masses(NamedTuple):
    """A law on a grid: P-masses, that of an infinite loss, and what came from below the grid."""

    grid: jax.Array
    infinite: jax.Array
    below: jax.Array


# ---- maps between losses


def sampled_loss(z: jax.Array, q: jax.Array) -> jax.Array:
    """log(1 - q + q e^z)."""
    large = z > 30.0
    shifted = z + jnp.log(q)
    far = shifted + jnp.log1p((1.0 - q) * jnp.exp(-jnp.where(large, shifted, 0.0)))
    return jnp.where(large, far, jnp.log1p(q * jnp.expm1(jnp.where(large, 0.0, z))))


def _unsampled_loss(y: jax.Array, q: jax.Array) -> jax.Array:
    """The z that sampling at rate q turns into y; -inf where there is none."""
    large = y > 30.0
    far = y - jnp.log(q) + jnp.log1p(-(1.0 - q) * jnp.exp(-jnp.where(large, y, 30.0)))
    ratio = jnp.expm1(jnp.where(large, 0.0, y)) / q
    near = jnp.log1p(jnp.maximum(ratio, -1.0))
    return jnp.where(large, far, jnp.where(q < 1.0, near, y))


# ---- cells of continuous laws


def _split(first: Any, y: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The shares of a mass at y that the lower and the upper end of its cell get."""
    into = jnp.clip(y - first, 0.0, h)
    whole = -jnp.expm1(-h)
    return jnp.exp(-into) * -jnp.expm1(into - h) / whole, -jnp.expm1(-into) / whole


def _normal_mass(a: jax.Array, b: jax.Array) -> jax.Array:
    """The standard normal mass of [a, b], a <= b, without cancellation in the tails."""
    flip = a + b < 0.0
    low, high = jnp.where(flip, -b, a), jnp.where(flip, -a, b)
    return 0.5 * (erfc(low * _SQRT_HALF) - erfc(high * _SQRT_HALF))


def _normal_density(x: jax.Array) -> jax.Array:
    return jnp.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


class _Gaussian(NamedTuple):
    """The base pair N(mu, 1), N(0, 1), in the coordinate x with z = mu x - mu^2 / 2."""

    mu: jax.Array

    def coordinate(self, z):
        return z / self.mu + 0.5 * self.mu

    def loss(self, x):
        return self.mu * (x - 0.5 * self.mu)

    def masses(self, a, b):  # under Q and under P
        return _normal_mass(a, b), _normal_mass(a - self.mu, b - self.mu)

    def densities(self, x):
        return _normal_density(x), _normal_density(x - self.mu)

    def rate(self, x):  # how fast the logarithm of an integrand may change
        return 1.0 + jnp.abs(x) + 2.0 * self.mu


class _Laplace(NamedTuple):
    """The continuous part of the base pair of Laplace laws, in the coordinate z, |z| < r."""

    r: jax.Array

    def coordinate(self, z):
        return jnp.clip(z, -self.r, self.r)

    def loss(self, z):
        return z

    def masses(self, a, b):
        width = -jnp.expm1(-0.5 * (b - a))
        return 0.5 * jnp.exp(-0.5 * (a + self.r)) * width, 0.5 * jnp.exp(0.5 * (b - self.r)) * width

    def densities(self, z):
        return 0.25 * jnp.exp(-0.5 * (z + self.r)), 0.25 * jnp.exp(0.5 * (z - self.r))

    def rate(self, z):
        return 2.0 + 0.0 * z


class _Cells(NamedTuple):
    """What each cell gives to its two ends, and the masses beyond the first and the last point."""

    down: jax.Array
    up: jax.Array
    below: jax.Array
    above: jax.Array

    def masses(self) -> Masses:
        none = jnp.zeros(1, self.up.dtype)
        down, up = jnp.concatenate([self.down, none]), jnp.concatenate([self.below[None], self.up])
        return Masses(down + up, self.above, self.below)


def _cells(base: Any, q: jax.Array, y: jax.Array, h: jax.Array, add: bool) -> _Cells:
    """A continuous base law after sampling, on the grid y of spacing h."""
    low_end, high_end = base.coordinate(jnp.asarray([-jnp.inf, jnp.inf], y.dtype))
    x = base.coordinate(_unsampled_loss(-y if add else y, q))
    # In the order of the losses: what is below the grid, the cells, what is above.
    ends = (high_end, low_end) if add else (low_end, high_end)
    x = jnp.concatenate([ends[0][None], x, ends[1][None]])
    a, b = (x[1:], x[:-1]) if add else (x[:-1], x[1:])
    without, with_it = base.masses(a, b)
    total = without if add else (1.0 - q) * without + q * with_it
    below, above, first = total[0], total[-1], y[:-1]
    a, b, without, with_it, total = (part[1:-1] for part in (a, b, without, with_it, total))
    gap = q * (with_it - without)
    bounded = jnp.minimum(first, 600.0)
    inward = -without * jnp.expm1(bounded)
    inward = inward - jnp.exp(bounded) * gap if add else inward + gap
    up = jnp.where(first < 600.0, jnp.clip(inward / -jnp.expm1(-h), 0.0, total), total)
    down = total - up

    finite = jnp.isfinite(a) & jnp.isfinite(b)
    left, width = jnp.where(finite, a, 0.0), jnp.where(finite, b - a, 1.0)
    narrow = finite & (width * base.rate(left + 0.5 * width) < 1.0)

    def add_node(sums, node_and_weight):
        node, weight = node_and_weight
        place = left + (0.5 + node) * width
        low, high = base.densities(place)
        density = weight * width * (low if add else (1.0 - q) * low + q * high)
        loss = sampled_loss(base.loss(place), q)
        to_lower, to_upper = _split(first, -loss if add else loss, h)
        return (sums[0] + density * to_lower, sums[1] + density * to_upper), None

    rule = jnp.asarray(_NODES, y.dtype), jnp.asarray(_WEIGHTS, y.dtype)
    none = jnp.zeros_like(up)
    (narrow_down, narrow_up), _ = jax.lax.scan(add_node, (none, none), rule)
    return _Cells(
        jnp.where(narrow, narrow_down, down), jnp.where(narrow, narrow_up, up), below, above
    )


def _atoms(losses: jax.Array, masses: jax.Array, y: jax.Array, h: jax.Array) -> Masses:
    """Atoms at given losses, spread over the ends of their cells."""
    size = y.shape[0]
    place = (losses - y[0]) / h
    near = jnp.round(place)
    snapped = jnp.abs(place - near) < SNAP
    cell = jnp.clip(jnp.where(snapped, near, jnp.floor(place)), 0, size - 1)
    lower, upper = _split(0.0, (jnp.where(snapped, cell, place) - cell) * h, h)
    outside = (place > size - 1) & ~(snapped & (near <= size - 1))
    under = (place < 0.0) & ~(snapped & (near >= 0))
    inside = jnp.where(outside | under, 0.0, masses)
    index = cell.astype(jnp.int32)
    grid = jnp.zeros_like(y).at[index].add(inside * lower)
    grid = grid.at[jnp.minimum(index + 1, size - 1)].add(inside * upper)
    below = jnp.sum(jnp.where(under, masses, 0.0))
    return Masses(grid.at[0].add(below), jnp.sum(jnp.where(outside, masses, 0.0)), below)


def _sum(*parts: Masses) -> Masses:
    return Masses(*(sum(fields[1:], fields[0]) for fields in zip(*parts, strict=True)))


def _gaussian(columns: Any, y: jax.Array, h: jax.Array, add: bool) -> Masses:
    q, mu = columns
    return _cells(_Gaussian(mu), q, y, h, add).masses()


def _laplace(columns: Any, y: jax.Array, h: jax.Array, add: bool) -> Masses:
    q, r = columns
    losses, without, with_it = _laplace_atoms(q, r)
    masses = without if add else (1.0 - q) * without + q * with_it
    return _sum(
        _cells(_Laplace(r), q, y, h, add).masses(),
        _atoms(-losses if add else losses, masses, y, h),
    )


def _laplace_atoms(q: Any, r: Any) -> tuple[Any, Any, Any]:
    """Both ends: the losses after sampling, the masses without and with the example."""
    ends = jnp.stack([-r, r])
    low, high = jnp.full_like(r, 0.5), 0.5 * jnp.exp(-r)
    losses = jnp.where(q < 1.0, sampled_loss(ends, q), ends)
    return losses, jnp.stack([low, high]), jnp.stack([high, low])


def _truncated(columns: Any, y: jax.Array, h: jax.Array, add: bool) -> Masses:
    """Sampled, or where the capacity is full, sampled in exchange for another example.

    Whether the others alone fill the capacity B does not depend on the example. If they do, what
    the batch holds without it is a uniform B-subset of the others, whatever their number; with
    it, one of the subset has been replaced with probability c. Given the rest of the subset
    and who would be replaced, that is a pair (1-c) N(z) + c N(x) against N(z), with x and z at
    most twice the sensitivity apart: the sampled Gaussian at rate c and 2 mu. Revealing which of
    the two happened only adds information: the loss law is the mixture of the two.
    """
    full, rest, c, q, mu = columns
    rates, shifts = jnp.stack([jnp.where(c > 0.0, c, q), q]), jnp.stack([2.0 * mu, mu])
    both = jax.lax.map(lambda row: _gaussian(row, y, h, add), (rates, shifts))
    return jax.tree.map(lambda part: full * part[0] + rest * part[1], both)


def _without_replacement(columns: Any, y: jax.Array, h: jax.Array, add: bool) -> Masses:
    """The removal law for losses above 0, the addition law below, an atom at 0 for what is left.

    Zhu, Dong and Wang 2022, Theorem 11: the hockey-stick divergence of order alpha is at most
    that of ((1-q)Q + qP, Q) for alpha >= 1 and of (P, (1-q)P + qQ) for alpha < 1, with (P, Q) the
    pair under replacement. A profile fixes the loss law piece by piece; at alpha = 1 the two
    agree in value and differ in slope, and that is the atom, (1-q) (2 Phi(mu/2) - 1).
    """
    del add  # replacement is symmetric
    q, mu = columns
    y = jnp.where(jnp.abs(y) < 0.25 * h, 0.0, y)  # the grid has 0 in it
    removed, added = (_cells(_Gaussian(mu), q, y, h, side) for side in (False, True))
    positive = y[:-1] >= 0.0
    cells = _Cells(
        jnp.where(positive, removed.down, added.down),
        jnp.where(positive, removed.up, added.up),
        added.below,
        removed.above,
    )
    atom = (1.0 - q) * _normal_mass(-0.5 * mu, 0.5 * mu)
    grid, infinite, below = cells.masses()
    return Masses(grid + jnp.where(y == 0.0, atom, 0.0), infinite, below)


def _lattice(columns: Any, y: jax.Array, h: jax.Array, add: bool) -> Masses:
    del add  # symmetric
    losses, atoms = columns
    return _atoms(losses, atoms, y, h)


_KINDS = {
    "gaussian": _gaussian,
    "laplace": _laplace,
    "truncated": _truncated,
    "without_replacement": _without_replacement,
    "lattice": _lattice,
}


def masses(kind: str, columns: Any, start: jax.Array, h: jax.Array, size: int) -> Masses:
    """The pessimistic masses of one law on start + h * (0, 1, ..., size - 1)."""
    y = start + h * jnp.arange(size, dtype=h.dtype)
    name, _, side = kind.partition("_")
    if name not in _KINDS:
        name, side = kind, ""
    return _KINDS[name](columns, y, h, side == "add")
