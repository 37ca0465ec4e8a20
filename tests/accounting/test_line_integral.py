"""What the exact accountant rests on: weights, norms, inner sums and the series in epsilon."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp.accounting import (
    complex_norm,
    composition,
    contour,
    exact_delta,
    inner_shift,
    line_integral,
    renyi_bounds,
    saddle,
)

# jax.enable_x64 is the newer name of the same scoped context manager.
if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:
    from jax.experimental import enable_x64

ULP = float(np.finfo(np.float64).eps)

# q, sigma, order less one, cuts on one step's loss: few and many expected participations,
# the least sharpness and one of 6.
LINES = {
    "little noise": (1e-4, 0.6, 20.0, (0.004, 0.012)),
    "some noise": (2.1e-4, 2.3, 110.0, (0.0023, 0.0069)),
    "more noise": (3.308e-5, 6.1662, 4672.0, (2e-4, 6e-4)),
    "sharp": (1e-3, 40.0, 3e4, (1.05e-3, 1.2e-3)),
}


@pytest.fixture
def wide():
    with enable_x64(True):
        yield


def on_line(q, sigma, c, cuts, start=0):
    """A line between two cuts, the contour for it, and a chunk of its nodes."""
    line = saddle.Line(
        jnp.float64(c),
        jnp.float64(c / 2.0),
        jnp.asarray(cuts, jnp.float64),
        jnp.asarray(True),
        jnp.zeros(()),
    )
    nodes = inner_shift.contour_of(line, jnp.float64(q), jnp.float64(sigma), jnp.asarray(True))
    y = line.spacing * (start + jnp.arange(float(line_integral.CHUNK)))
    return line, nodes, y


def reference_weights(log_x):
    """chi and 1 - chi by their definition, to 60 digits."""
    x = mpmath.exp(mpmath.mpc(log_x))
    above = (1 - mpmath.exp(-x)) ** 16
    return above, 1 - above


def test_weights_above_and_below_a_cut_keep_all_their_digits(wide):
    rng = np.random.default_rng(0)
    log_x = rng.uniform(-30.0, 3.5, 60) + 1j * rng.uniform(-1.4, 1.4, 60)
    above, below, _ = contour.partition(jnp.asarray(log_x)[:, None])
    with mpmath.workdps(60):
        for index, at in enumerate(log_x):
            # A relative error of 4 ulps in 1 - e^-x is 64 in its 16th power; one in x is |x| of
            # them in e^-x.
            size = 100.0 * ULP * (1.0 + abs(np.exp(at)))
            for found, true in zip((above, below), reference_weights(at), strict=True):
                assert abs(complex(found[index, 0]) - true) <= size * abs(true)


def log_jump_at(cut, q):
    """log(q e^z) of a step whose loss, log(1 - q + q e^z), is the cut above its least value."""
    return np.log((1.0 - q) * np.expm1(cut))


def dense(q, sigma, c, cuts, sharpness, y, angle):
    """Logs of norms by definition: sums on a grid so fine that nothing falls between its nodes."""
    sd, step = 1.0 / sigma, 1e-3
    t = np.arange(-12.0, 60.0, step)
    z = sd * (t - 0.5 * sd) + 1j * angle
    loss = np.log(1.0 - q + q * np.exp(z))
    log_density = 0.5 * (angle / sd) ** 2 - 0.5 * t * t + np.log(step / np.sqrt(2.0 * np.pi))
    jumps = [sharpness * (z + np.log(q) - log_jump_at(cut, q)) for cut in cuts]
    x, x_above = (np.exp(np.minimum(jump.real, 12.0) + 1j * jump.imag) for jump in jumps)
    below, below_above = (
        1.0 - (1.0 - np.exp(-np.minimum(x.real, 600.0) - 1j * x.imag)) ** 16 for x in (x, x_above)
    )

    # 16 e^-x for large x, of which floats know nothing.
    def log_weight(weight, x):
        near = np.log(np.maximum(np.abs(weight), 1e-300))
        return np.where(x.real > 30.0, np.log(16.0) - x.real, near)

    exponent = (c + 1j * y) * loss
    log_law = log_density + loss.real
    between = exponent.real + log_weight(below_above - below, x_above)
    low = exponent.real < -50.0  # there 1 + x, times e^-x, is all
    kept = np.abs(1.0 - (1.0 + exponent) * np.exp(-np.where(low, 0.0, exponent)))
    kept = np.where(low, np.log(np.abs(1.0 + exponent)) - exponent.real, np.log(kept + 1e-300))
    excess = exponent.real + kept + log_weight(below, x)
    return [np.logaddexp.reduce(log_law + part) for part in (between, excess)]


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("steps", [-1, 0, 2, 5])
def test_norms_below_a_cut_are_no_smaller_than_the_integrals(wide, name, steps):
    line, nodes, y = on_line(*LINES[name])
    shift = contour.shift_step(nodes) * steps
    found = complex_norm.log_norms(
        nodes, line.c, y[jnp.asarray([0, -1])], shift[None], y[-1], complex_norm.EVERY_CUT
    )
    for end, at in enumerate((y[0], y[-1])):
        between, excess = dense(
            *LINES[name], float(nodes.sharpness), float(at), float(shift * nodes.sd)
        )
        # Norms count as right to a few per cent: their users double them. They are sums of
        # absolute values, and where these fall within few nodes somewhat larger.
        assert between - 0.05 <= found.between[end, 0] <= between + 0.5
        assert found.excess[end, 0] >= excess - 0.05


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("start", [0, 128])
def test_inner_sums_below_a_cut_are_as_near_as_their_errors_say(wide, name, start):
    q, sigma, c, cuts = LINES[name]
    line, nodes, y = on_line(q, sigma, c, cuts, start)
    choice = inner_shift.choose(nodes, line, y, y[-1] + line.spacing)
    _, _, found = line_integral._logs(nodes, line, y, choice)
    sharpness = float(nodes.sharpness)
    log_cut = float(nodes.log_cut[0])

    def missing(t, order):
        rate, sd = mpmath.mpf(q), 1 / mpmath.mpf(sigma)
        z = sd * (t - sd / 2)
        ratio = 1 - rate + rate * mpmath.exp(z)
        x = mpmath.exp(sharpness * (z + mpmath.log(rate) - log_cut))
        below = 1 - (1 - mpmath.exp(-x)) ** 16 if x < 300 else 16 * mpmath.exp(-x)
        return mpmath.npdf(t) * ratio * (below * mpmath.exp(order * mpmath.log(ratio)) - 1)

    with mpmath.workdps(40):
        edges = [mpmath.mpf(k) / 4 for k in range(-56, 140)]
        for index in (0, 40):
            order = mpmath.mpc(c, float(y[index]))
            true = mpmath.quad(functools.partial(missing, order=order), edges)
            error = float(found.small_error[index, 0] + choice.rule_error[index])
            assert abs(complex(found.small[index, 0]) - true) <= error
            # Not met by being huge: of m - 1 eight digits are known.
            assert error < 1e-8 * abs(true)


RUNS = {"whole": (0.01, 1.0, 1000.0, -11.5), "split": (3e-4, 0.6, 1000.0, -11.5)}


@pytest.mark.parametrize("name", RUNS)
def test_the_series_in_epsilon_says_what_another_integral_says(wide, name):
    q, sigma, count, log_delta = RUNS[name]
    steps = composition.steps_of(acc.PoissonSampled(q, acc.Gaussian(sigma)) * int(count))
    run = exact_delta.run_of(steps, jnp.float64)
    log_delta, remove = jnp.float64(log_delta), jnp.asarray(True)
    t, _ = jax.jit(renyi_bounds.best_order)(steps, log_delta)
    ceiling = jax.jit(renyi_bounds.epsilon)(steps, log_delta)
    side = exact_delta.Side(run, jax.jit(saddle.table)(run, t, ceiling, remove), remove)
    evaluate = jax.jit(exact_delta.delta_at)
    split, exactly = jnp.asarray(name == "split"), jnp.asarray(False)
    epsilon = jnp.float64(acc.epsilon(acc.PoissonSampled(q, acc.Gaussian(sigma)) * 1000, 1e-5))
    found, _ = evaluate(side, epsilon, log_delta, 1.0 / t, split, exactly)
    assert bool(found.split) == (name == "split")
    for share in (-0.9, -0.1, 0.3, 0.8):
        d = share * found.reach
        there, _ = evaluate(side, epsilon + d, log_delta, 1.0 / t, split, exactly)
        by_series = exact_delta.known_at(found, d)
        itself = exact_delta.known_at(there, jnp.zeros_like(d))
        # Epsilon + d is rounded: that moves the value by its slope.
        rounding = 2.0 * ULP * epsilon * itself.slope
        off = by_series.error + itself.error + found.alias + rounding
        off = off + found.left_out + there.left_out
        assert abs(by_series.value - itself.value) <= off
        assert off < 1e-4


@pytest.mark.parametrize("share", [-1.0, -1e-2, -1e-4, 1e-4, 1e-2, 1.0])
def test_the_rest_of_a_term_is_bounded_however_fast_it_turns(wide, share):
    c, reach = 3.0, 0.2
    x = c + 1j * np.geomspace(1e-3, 1e7, 200)
    powers, sizes = line_integral._powers(jnp.asarray(x), jnp.float64(reach))
    by_series = np.asarray(powers) @ share ** np.arange(line_integral.ORDER + 1)
    rest = np.asarray(sizes[:, -1]) * abs(share) ** (line_integral.ORDER + 1)
    rest = (rest + 2.0 * np.asarray(sizes[:, 0])) * max(1.0, np.exp(-c * share * reach))
    # NumPy's own exponential of up to 2e6 turns is off by that many ulps.
    rounding = 4.0 * ULP * (np.abs(np.asarray(powers)).sum(axis=1) + np.abs(x) * reach)
    assert np.all(np.abs(np.exp(-x * share * reach) - by_series) <= rest + rounding)
