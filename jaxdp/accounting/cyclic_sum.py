r"""The law of a sum of privacy losses on a window, by tilted FFTs with bounded errors.

Let the runs' steps have the pessimistic laws w_j (``loss_law``) on grids o_j + h Z, with counts
n_j. Their sum Y has :math:`\delta(\epsilon) = E[(1 - e^{\epsilon - Y})_+]`, and its law is the
inverse transform of the product of w_j^(n_j). **Tilting** multiplies w_j by
:math:`e^{\theta y - \kappa_j}` with :math:`\kappa_j` such that it sums to 1; the law of the sum is
tilted likewise, and the sum for delta has the weights
:math:`e^{\kappa - \theta y}(1 - e^{\epsilon - y})_+`, :math:`\kappa = \sum n_j \kappa_j`, instead.
Any theta is valid; with the saddle point the mass sits near epsilon and delta = 1e-100 is as easy
as 0.1.

**Heavy tails.** Where one large loss decides (few expected participations), no tilt moves the mass
to epsilon. So losses above a cut are kept apart: w = b + g, and
:math:`w^n = b^n + [(b + g)^n - b^n]`, each part with a tilt of its own. The second one is computed
as :math:`\hat b^n \, \mathrm{expm1}(n \, \mathrm{log1p}(\hat g / \hat b))`, small as it is.

**Errors**, each bounded in a field of ``Sum`` or ``Part``, for ``sum_profile`` to move outward:

- *Discretisation, truncation of a law*: pessimistic, see ``loss_law``. Infinite losses add at most
  the sum of n_j times their mass.
- *Wrap-around*. The transform is cyclic with the period W = size * h, and all masses are >= 0. What
  lies below the window reappears in it and only adds. What lies above reappears lower and may be
  lost: tilted, at most its share of the total, so at most e^(kappa - theta * top) untilted.
- *Rounding of the transforms*. Every entry of a transform is off by at most
  e = 6 eps log2(size) times the sum of the moduli of its input (each of log2(size) stages adds
  products with rounded roots of unity; the constant has room for the ones of other libraries). For
  products, \|prod a^n - prod b^n\| with \|a - b\| <= e is at most n e (\|b\| + e)^(n-1) ...: the
  derivative at the outer end, the product being a power series in b and g with coefficients >= 0.
  The mean of that over the frequencies, plus e times the mean modulus, bounds each entry's error.
- *Rounding of the laws*: losses off by some ulps move the sum by at most n_j times them, and that
  is added to epsilon; masses off by a factor 1 + some ulps, to the power n_j.

References:
  Koskela, Jälkö and Honkela 2020, arXiv:1906.03049; Alghamdi et al. 2022, arXiv:2208.09595
  (tilting).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import logsumexp

from jaxdp.accounting import complex_functions, loss_law

_TINY = 1e-290


class Part(NamedTuple):
    """A part of the law of the sum: entry m stands for the mass times e^(theta y_m - log_mgf)."""

    entries: jax.Array
    error: jax.Array  # at most, of each entry
    theta: jax.Array
    log_mgf: jax.Array  # kappa
    log_share: jax.Array  # log of the tilted mass of this part
    log_above: jax.Array  # log of its tilted mass above the window, at most
    log_below: jax.Array  # log of its tilted mass with a step below a law's grid, at most


class Sum(NamedTuple):
    """The law of the sum on a window, with bounds on all that is missing."""

    y: jax.Array
    parts: list[Part]
    infinite: jax.Array  # P-mass of infinite losses
    log_under: jax.Array  # log of the P-mass below the window
    spread: jax.Array  # V
    shift: jax.Array  # what rounding may have moved losses by
    slack: jax.Array  # what rounding may have taken off log delta


def _expm1(z: jax.Array) -> jax.Array:
    """e^z - 1 to full accuracy also next to multiples of 2 pi i, which n phases reach."""
    x, y = jnp.real(z), jnp.imag(z)
    half = jnp.sin(0.5 * y)
    return jnp.expm1(x) * jnp.cos(y) - 2.0 * half * half + 1j * jnp.exp(x) * jnp.sin(y)


def _bulk(log_mass: jax.Array, y: jax.Array, theta: jax.Array, cut: jax.Array, e: float):
    """One law's contribution to the part without large losses, for one step."""
    exponent = jnp.where(y <= cut, log_mass + theta * y, -jnp.inf)
    log_mgf = logsumexp(exponent)
    b = jnp.fft.rfft(jnp.exp(exponent - log_mgf))
    size = jnp.abs(b)
    return {
        "log_mgf": log_mgf,
        "log": jnp.log(jnp.maximum(size, _TINY)),
        "phase": jnp.angle(b),
        "log_outer": jnp.log(size + e),
        "slope": e / (size + e),
    }


def _large(log_mass: jax.Array, y: jax.Array, theta: jax.Array, cut: jax.Array, e: float):
    """One law's contribution to the part with large losses, for one step."""
    exponent = log_mass + theta * y
    log_mgf = logsumexp(exponent)
    tilted = jnp.exp(exponent - log_mgf)
    low, high = jnp.where(y <= cut, tilted, 0.0), jnp.where(y > cut, tilted, 0.0)
    low_mass, high_mass = jnp.sum(low), jnp.sum(high)
    b, g = jnp.fft.rfft(low), jnp.fft.rfft(high)
    b = jnp.where(jnp.abs(b) > 1e-25, b, 1e-25)  # a perturbation below e
    b_outer, g_outer = jnp.abs(b) + e * low_mass, jnp.abs(g) + e * high_mass
    ratio = complex_functions.log1p(g / b)
    return {
        "log_mgf": log_mgf,
        "log": jnp.log(jnp.abs(b)),
        "phase": jnp.angle(b),
        "ratio": jnp.real(ratio),
        "ratio_phase": jnp.imag(ratio),
        "log_outer": jnp.log(b_outer),
        "ratio_outer": jnp.log1p(g_outer / b_outer),
        "slope": e * low_mass / b_outer,
        "slope_large": e * high_mass / (b_outer + g_outer),
        "share": jnp.log1p(high_mass / low_mass),
    }


def _law(
    kind: str, row: Any, ends: Any, h: Any, tilts: Any, size: int, split: bool, e: float
) -> dict[str, Any]:
    """All contributions of one law, for one step."""
    start, last = ends
    law = loss_law.masses(kind, row, start, h, size)
    y = start + h * jnp.arange(size, dtype=h.dtype)
    beyond = jnp.sum(jnp.where(y > last, law.grid, 0.0))
    # Probabilities that were rounded up add up to more than 1.
    excess = jnp.maximum(jnp.sum(law.grid) + law.infinite - 1.0, 0.0)
    law = law._replace(grid=jnp.where(y > last, 0.0, law.grid), infinite=law.infinite + beyond)
    log_mass = jnp.where(law.grid > 0.0, jnp.log(jnp.maximum(law.grid, 1e-323)), -jnp.inf)
    theta_b, theta_g, cut, right, left = tilts
    found = {"infinite": law.infinite, "start": start, "excess": excess}
    found["bulk"] = _bulk(log_mass, y, theta_b, cut, e)
    inside = jnp.where(y <= cut, log_mass, -jnp.inf)
    found["right"] = logsumexp(inside + (theta_b + right) * y)
    found["left"] = logsumexp(log_mass - left * y)
    found["below"] = law.below * jnp.exp(theta_b * start - found["bulk"]["log_mgf"])
    furthest = jnp.maximum(jnp.abs(start), jnp.abs(last))
    found["furthest"] = furthest
    if split:
        found["large"] = _large(log_mass, y, theta_g, cut, e)
        found["right_large"] = logsumexp(log_mass + (theta_g + right) * y)
        found["below_large"] = law.below * jnp.exp(theta_g * start - found["large"]["log_mgf"])
    spread = jnp.where(jnp.any(_is_spread(kind, row, start, h)), 1.0, 0.0)
    found["spread"] = spread * h * h
    return found


def _is_spread(kind: str, row: Any, start: Any, h: Any) -> Any:
    if kind != "lattice":
        return True
    place = (row[0] - start) / h
    return (jnp.abs(place - jnp.round(place)) >= loss_law.SNAP) & (row[1] > 0.0)


def _added(laws: Any, ends: Any, h: Any, tilts: Any, kinds: Any, size: int, split: bool, e: float):
    """The contributions of all laws, each times its count."""
    total = None
    for kind, (columns, count), grid in zip(kinds, laws, ends, strict=True):

        def term(row, n, o, kind=kind):
            one = _law(kind, row, o, h, tilts, size, split, e)
            return jax.tree.map(lambda value: n * value, one)

        first = term(tuple(column[0] for column in columns), count[0], (grid[0][0], grid[1][0]))
        total = first if total is None else jax.tree.map(jnp.add, total, first)
        if count.shape[0] > 1:
            rest = (tuple(column[1:] for column in columns), count[1:], (grid[0][1:], grid[1][1:]))

            def step(carry, row, term=term):
                return jax.tree.map(jnp.add, carry, term(*row)), None

            total = jax.lax.scan(step, total, rest)[0]
    return total


def _entries(spectrum: jax.Array, error: jax.Array, first: jax.Array, size: int, e: float):
    """The inverse transform, turned so that it begins at index ``first``; the error of an entry."""
    weight = jnp.full(spectrum.shape, 2.0).at[jnp.asarray([0, -1])].set(1.0) / size
    values = jnp.fft.irfft(spectrum, size)
    bound = jnp.sum(weight * error) + e * jnp.sum(weight * jnp.abs(spectrum))
    return jnp.roll(values, -jnp.mod(first, size).astype(jnp.int32)), bound


def sum_of(
    laws: Any, ends: Any, h: Any, bottom: Any, tilts: Any, *, kinds: Any, size: int, split: bool
) -> Sum:
    """The law of the sum on the window of ``size`` points from ``bottom`` upwards."""
    eps = float(jnp.finfo(h.dtype).eps)
    e = 6.0 * eps * math.log2(size)
    found = _added(laws, ends, h, tilts, kinds, size, split, e)
    theta_b, theta_g, _, right, left = tilts
    first = jnp.ceil((bottom - found["start"]) / h)
    y = found["start"] + h * (first + jnp.arange(size, dtype=h.dtype))
    top = y[-1] + h
    bulk = found["bulk"]
    modulus = jnp.exp(bulk["log"])
    spectrum = modulus * jnp.exp(1j * bulk["phase"])
    turns = eps * 8.0 * sum(jnp.sum(count) for _, count in laws)  # rounding of n times a phase
    error = (bulk["slope"] + turns) * jnp.exp(bulk["log_outer"])
    entries, bound = _entries(spectrum, error, first, size, e)
    above = jnp.minimum(found["right"] - bulk["log_mgf"] - right * top, 0.0)
    parts = [
        Part(entries, bound, theta_b, bulk["log_mgf"], 0.0 * h, above, jnp.log(found["below"]))
    ]
    if split:
        big = found["large"]
        spectrum = jnp.exp(big["log"] + 1j * big["phase"])
        spectrum = spectrum * _expm1(big["ratio"] + 1j * big["ratio_phase"])
        outer = jnp.exp(big["log_outer"])
        grown = outer * jnp.expm1(big["ratio_outer"])
        error = (big["slope"] + turns) * grown + (
            big["slope_large"] + turns * big["ratio_outer"]
        ) * (outer + grown)
        entries, bound = _entries(spectrum, error, first, size, e)
        share = jnp.log(-jnp.expm1(-big["share"]))
        above = jnp.minimum(found["right_large"] - big["log_mgf"] - right * top, share)
        below = jnp.log(found["below_large"])
        parts.append(Part(entries, bound, theta_g, big["log_mgf"], share, above, below))
    steps = sum(jnp.sum(count) for _, count in laws)
    shift = found["furthest"] * loss_law.LOCATION_ULPS * eps + steps * h * loss_law.SNAP * 2.0
    largest = jnp.maximum(theta_b, theta_g) if split else theta_b
    slack = eps * (steps * loss_law.MASS_ULPS + 16.0 * largest * found["furthest"])
    slack = slack + found["excess"]
    log_under = jnp.minimum(found["left"] + left * y[0], 0.0)
    infinite = found["infinite"] * (1.0 + 1e-9)
    return Sum(y, parts, infinite, log_under, found["spread"], shift, slack)
