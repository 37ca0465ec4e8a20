"""The count behind adaptive clipping: its sensitivity, and what the two releases cost together."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp import transforms


@pytest.mark.parametrize("norm", [0.0, 1.0, 1.0001, math.inf, math.nan])
def test_one_example_more_moves_the_counts_by_their_sensitivity_at_most(norm):
    rest, clip_norm = [0.3, 0.6, 1.7], {"w": 1.0, "b": 1.0, "c": 2.0}
    few, many = (
        transforms.count_within(
            dict.fromkeys(clip_norm, jnp.asarray(rows)), clip_norm, jnp.zeros(len(rows), bool)
        )
        for rows in (rest, [*rest, norm])
    )
    moved = [abs(float(many.value[name]) - float(few.value[name])) for name in clip_norm]
    assert moved == [0.5, 0.5, 0.5]
    assert math.hypot(*moved) <= float(many.l2_sensitivity) < 0.86603 + 1e-5


def test_padding_counts_for_nothing_and_must_be_thought_of():
    norms = jnp.asarray([0.5, 0.0, 3.0, 0.0])
    is_padding = jnp.asarray([False, True, False, True])
    assert float(transforms.count_within(norms, 1.0, is_padding).value) == 0.0
    assert float(transforms.count_within(norms, 1.0, None).value) == 1.0
    assert float(transforms.count_within(norms, 1.0, jnp.ones(4, bool)).value) == 0.0
    with pytest.raises(TypeError, match="is_padding"):
        transforms.count_within(norms, 1.0)


# (z, sigma_b): the two releases with the split multiplier cost what one Gaussian(z) does.
SPLITS = [(1.0, 1.0), (0.3, 0.151), (1.1, 12.8), (7.3, 5.0), (1e-3, 0.1), (1.9999999, 1.0)]


@pytest.mark.parametrize(("z", "sigma_b"), SPLITS)
def test_the_split_costs_what_the_whole_does_and_never_more(z, sigma_b):
    left = transforms.split_noise_multiplier(z, sigma_b)
    assert left == float(np.float32(left))
    both = acc.Gaussian(left) + acc.Gaussian(2 * min(sigma_b, float(np.float32(sigma_b))))
    mu = acc.epsilon(acc.Gaussian(z), delta=1e-5), acc.epsilon(both, delta=1e-5)
    # The accountant rounds up by 1e-9 or so of itself; float32 moves z by 6e-8.
    assert mu[1] <= mu[0] * (1 + 1e-8)
    assert mu[1] >= mu[0] * (1 - 1e-6)
    traced = float(jax.jit(transforms.split_noise_multiplier)(z, sigma_b))
    share = 1 - (z / (2 * sigma_b)) ** 2
    if share < 1e-5:
        assert math.isnan(traced)  # too little to tell from rounding
    else:
        # Two float32 roundings of the arguments and eight of the formula, over the share left.
        assert left * (1 - 2e-7 / share) <= traced <= left * (1 + 3e-6 / share)


def test_the_accountant_sees_the_combined_multiplier():
    """CASES 27."""
    left = transforms.split_noise_multiplier(1.0, 1.0)
    assert left == pytest.approx(2 / math.sqrt(3), rel=1.2e-7)

    def epsilon(z):
        run = acc.PoissonSampled(0.01, acc.Gaussian(z)) * 1000
        return acc.epsilon(run, delta=1e-5, accountant="rdp")

    assert epsilon(1.0) == pytest.approx(2.101, abs=1e-3)
    assert epsilon(left) == pytest.approx(1.556, abs=1e-3)  # what forgetting the count would say


@pytest.mark.parametrize(("z", "sigma_b"), [(2.0, 1.0), (2.1, 1.0), (1.0, 0.0)])
def test_a_count_that_costs_more_than_the_whole_is_refused(z, sigma_b):
    with pytest.raises(ValueError, match="noise_multiplier must be below twice count_noise_mul"):
        transforms.split_noise_multiplier(z, sigma_b)
    assert np.isnan(jax.jit(transforms.split_noise_multiplier)(z, sigma_b))


@pytest.mark.parametrize("sigma_b", [0.0, 1.0])
def test_no_noise_splits_into_no_noise(sigma_b):
    assert transforms.split_noise_multiplier(0.0, sigma_b) == 0.0
    assert jax.jit(transforms.split_noise_multiplier)(0.0, sigma_b) == 0.0


BAD = [
    ("noise_multiplier", "-1", lambda: transforms.split_noise_multiplier(-1, 1)),
    ("count_noise_multiplier", "inf", lambda: transforms.split_noise_multiplier(1, math.inf)),
    ("norms", "1", lambda: transforms.count_within(1.0, 1.0, None)),
    ("norms", "shape", lambda: transforms.count_within(jnp.zeros((2, 2)), 1.0, None)),
    ("norms", r"PyTreeDef\(\*\)", lambda: transforms.count_within(jnp.zeros(2), [1.0, 1.0], None)),
    (
        r"norms\[1\]",
        "shape",
        lambda: transforms.count_within([jnp.zeros(2), jnp.zeros(3)], [1, 1], None),
    ),
    ("is_padding", "Array", lambda: transforms.count_within(jnp.zeros(2), 1.0, jnp.zeros(2))),
]


@pytest.mark.parametrize(("name", "shown", "call"), BAD)
def test_a_bad_call_is_refused(name, shown, call):
    with pytest.raises(ValueError, match=f"^{name} must be .*, got .*{shown}"):
        call()
