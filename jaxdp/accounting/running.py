r"""The exact accountant step by step: log-moments on fixed lines, added up inside a program.

`line_integral` proves that, for every c > 0 and every spacing h,

.. math:: \delta(\epsilon) \le \frac{h}{2 \pi} \sum_{k \in Z}
          \frac{M(c + ikh) \, e^{-(c + ikh) \epsilon}}{(c + ikh)(1 + c + ikh)},

what is added being non-negative; log M is the sum of the steps' log-moments. So lines that are
fixed before the run bound delta at every epsilon and after every step: a line that suits badly is
loose, not wrong, and the least of several counts. Bounds on the errors of the log-moments, and on
how far \|M\| falls beyond the last node, add up likewise. Those of both directions are kept.

Rounding: the nodes hold few bits and are exact. A sum kept as a pair is off by 2 ulps of itself and
n ulps^2 of the sum of sizes for n steps, which for n below 1 / ulp is one ulp of each step's size:
every step adds 8 ulps of its size to its error. The bound on the tail is a product of as many
rounded factors as there are steps; it counts twice.

Where a run's few large losses decide, \|M\| does not fall within the nodes and the bound is of no
use: whoever asks has Renyi DP beside it.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _precision, _validate
from jaxdp.accounting import composition, exact, exact_delta, line_integral
from jaxdp.accounting.events import Event
from jaxdp.accounting.saddle import Line

_ALIAS = 14.0  # log of what the rule adds to the left of epsilon, under delta
_NODES = line_integral.CHUNK


class Lines(NamedTuple):
    """Vertical lines in the plane of orders, shape [m] each, exact in float32."""

    c: Any
    spacing: Any


class Moments(NamedTuple):
    """Log-moments of a run on lines [m], for one example removed and added [2]."""

    real: Any  # log M at the nodes [2, m, nodes]
    imaginary: Any
    error: Any  # bound on its error [2, m, nodes]
    decay: Any  # bound on log |M / M(c)| beyond the nodes [2, m]


def _few_bits(values: Any) -> np.ndarray:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.floor(256.0 * mantissa) / 256.0, exponent)


def lines_for(target_epsilon: float, delta: float) -> Lines:
    """Lines that suit a run which has spent about this much, and loosely one that spent less.

    With K the log-moment the saddle point has c epsilon = K(c) - log delta. K(c) is next to 0 for
    a law of rare large losses, and largest for a Gaussian: c is between the two. The period
    2 pi / h keeps what the rule adds below delta on the left, and is six deviations to the right.
    """
    log_size = -math.log(delta)
    deviations = math.sqrt(2.0 * log_size)
    # Of the Gaussian that spends epsilon = mu^2 / 2 + deviations mu.
    mu = 2.0 * target_epsilon / (deviations + math.sqrt(deviations**2 + 2.0 * target_epsilon))
    gaussian = deviations / mu
    c = np.append(np.geomspace(0.8 * log_size / target_epsilon, gaussian, 3), 2.0 * gaussian)
    period = np.maximum((log_size + _ALIAS) / c, 6.0 * mu)
    return Lines(_few_bits(c), _few_bits(2.0 * math.pi / period))


def _moments(steps: composition.Steps, lines: Lines) -> Moments:
    dtype = lines.c.dtype
    run = exact_delta.run_of(steps, dtype)
    # Rows that do nothing get so much noise that nothing overflows, whatever the orders.
    run = run._replace(s=jnp.where(run.count == 0.0, 1.0 + jnp.max(lines.c), run.s))
    none, zero = jnp.zeros((0,), dtype), jnp.zeros((), dtype)

    def on(remove, c, spacing):
        line = Line(c, spacing, none, jnp.zeros((), bool), zero)
        _, _, total, _ = line_integral.chunk(run, line, jnp.zeros((), jnp.int32), remove)
        return Moments(total.log_moment.real, total.log_moment.imag, total.error, total.decay)

    def of(remove):
        return jax.lax.map(lambda line: on(remove, *line), lines)

    return jax.lax.map(of, jnp.asarray([True, False]))


def moments(event: Event, lines: Lines) -> Moments:
    """The log-moments of a run of Gaussians and Poisson-sampled Gaussians, to be added up.

    Numbers that are out of range make NaNs, and so does a step without noise: no bound at all.
    """
    steps = composition.steps_of(event)
    if not exact.applies(steps):
        _validate.refuse(
            "accountant",
            "exact",
            "'auto' or 'rdp' for a run with other than Gaussians and Poisson-sampled ones",
        )
    found = _precision.evaluate(_moments, steps, lines)
    dtype = jnp.result_type(float)
    real, imaginary, error, decay = (jnp.asarray(leaf, dtype) for leaf in found)
    ulp = float(jnp.finfo(dtype).eps)
    error = error + 8.0 * ulp * (jnp.abs(real) + jnp.abs(imaginary))
    if steps.sampled_gaussian is not None:
        # A negative count would take away what other steps have spent.
        fewest = jnp.min(jnp.asarray(steps.sampled_gaussian[2]))
        error = jnp.where(fewest >= 0.0, error, jnp.nan)
    return Moments(real, imaginary, error, decay)


def _on_line(spent: Moments, line: Lines, epsilon: jax.Array) -> jax.Array:
    """The bound on log delta of one direction by one line; 0 where it bounds nothing."""
    dtype = epsilon.dtype
    ulp = float(jnp.finfo(dtype).eps)
    grid = jnp.arange(_NODES, dtype=dtype)
    x = jax.lax.complex(jnp.broadcast_to(line.c, grid.shape), line.spacing * grid)
    share = jnp.where(grid == 0, 0.5, 1.0) * line.spacing / (math.pi * x * (1.0 + x))
    log_moment = jax.lax.complex(spent.real, spent.imaginary)
    scale = spent.real[0] - line.c * epsilon
    exponent = log_moment - x * epsilon - scale
    rounding = ulp * (16.0 + 2.0 * jnp.abs(log_moment) + jnp.abs(x) * epsilon)
    off = line_integral.growth(exponent.real, 1.001 * spent.error + rounding)
    value = jnp.sum((jnp.exp(exponent) * share).real)
    error = jnp.sum(off * jnp.abs(share))
    beyond = _NODES * line.spacing
    tail = (1.0 / beyond + line.spacing / beyond / beyond) / math.pi
    tail = 2.0 * tail * jnp.exp(spent.decay + spent.error[0])
    bound = jnp.log(value + error + tail)
    bound = bound + scale + 8.0 * ulp * (1.0 + jnp.abs(bound) + jnp.abs(scale))
    return jnp.where(jnp.isnan(bound), 0.0, jnp.minimum(bound, 0.0))


def log_delta(spent: Moments, lines: Lines, epsilon: jax.Array) -> jax.Array:
    """A bound on log delta at epsilon for what was added up; 0 where nothing better is known."""
    on_lines = jax.vmap(_on_line, in_axes=(0, 0, None))
    bounds = jax.vmap(on_lines, in_axes=(0, None, None))(spent, lines, epsilon)
    # The better of the lines, in the worse direction.
    return jnp.max(jnp.min(bounds, axis=1))


def epsilon(
    spent: Moments, lines: Lines, log_delta_wanted: jax.Array, most: jax.Array
) -> jax.Array:
    """The least epsilon up to ``most``, which is known to do, at which the bound is met."""
    tries = 40 if spent.real.dtype == jnp.float64 else 24

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        enough = log_delta(spent, lines, middle) <= log_delta_wanted
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    known = jnp.where(most < jnp.inf, most, 0.0)
    _, least = jax.lax.fori_loop(0, tries, halve, (jnp.zeros_like(known), known))
    # Moved up, so that it may be compared with a target that was rounded to this float type.
    least = least * (1.0 + 4.0 * float(jnp.finfo(known.dtype).eps))
    return jnp.minimum(jnp.where(most < jnp.inf, least, most), most)
