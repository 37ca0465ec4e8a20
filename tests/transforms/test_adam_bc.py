"""Adam with the variance of the noise taken out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp.transforms import scale_by_adam_bc

PARAMS = {"w": jnp.ones((3, 4)), "b": jnp.ones(4, jnp.bfloat16)}
UPDATES = {"w": jnp.full((3, 4), 2.0), "b": jnp.full(4, -1.0)}


def test_adam_bc_passes_the_contract(check_contract):
    # Compiled code may contract a product and a sum: a few units in the last place.
    check_contract(lambda: scale_by_adam_bc(0.3), UPDATES, PARAMS, rtol=1e-6)


def test_without_noise_it_is_adam():
    # eps=0 with a floor far below the second moments: the two formulas coincide, so what is
    # left is float32 rounding of a dozen operations.
    ours, adam = scale_by_adam_bc(0.0, variance_floor=1e-12), optax.scale_by_adam(eps=0.0)
    state, reference = ours.init(UPDATES), adam.init(UPDATES)
    for scale in (1.0, -3.0, 0.5):
        updates = jax.tree.map(lambda leaf, s=scale: s * leaf, UPDATES)
        left, state = ours.update(updates, state)
        right, reference = adam.update(updates, reference)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-6), left, right)


def test_scheduled_noise_variance_is_averaged_like_the_second_moment():
    stddevs, b1, b2, floor = [0.5, 0.1, 0.9], 0.8, 0.9, 1e-8
    gradients = [3.0, -1.0, 2.5]
    tx = scale_by_adam_bc(
        lambda step: jnp.asarray(stddevs)[step], b1=b1, b2=b2, variance_floor=floor
    )
    state = tx.init(jnp.zeros(1))
    for gradient in gradients:
        update, state = tx.update(jnp.asarray([gradient]), state)
    weights = [b2 ** (2 - s) * (1 - b2) / (1 - b2**3) for s in range(3)]
    second = sum(w * g * g for w, g in zip(weights, gradients, strict=True))
    noise = sum(w * s * s for w, s in zip(weights, stddevs, strict=True))
    first = sum(b1 ** (2 - s) * (1 - b1) / (1 - b1**3) * g for s, g in enumerate(gradients))
    expected = first / np.sqrt(max(second - noise, floor))
    np.testing.assert_allclose(float(update[0]), expected, rtol=1e-5)


def test_pure_noise_meets_the_floor_and_stays_finite():
    tx = scale_by_adam_bc(10.0, variance_floor=1e-2)
    update, _ = tx.update(jnp.asarray([1.0, 0.0]), tx.init(jnp.zeros(2)))
    np.testing.assert_allclose(np.asarray(update), [10.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"noise_stddev": -1.0}, "noise_stddev"),
        ({"noise_stddev": 1.0, "b1": 1.0}, "b1"),
        ({"noise_stddev": 1.0, "b2": -0.1}, "b2"),
        ({"noise_stddev": 1.0, "variance_floor": 0.0}, "variance_floor"),
    ],
)
def test_bad_arguments_are_refused(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        scale_by_adam_bc(**arguments)
