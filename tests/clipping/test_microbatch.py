import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp


def loss_fn(params, x):
    return jnp.sum(jnp.sin(params["w"] * x)) + params["b"] * x[0]


PARAMS = {"w": np.float32([0.3, -1.0, 2.0]), "b": np.float32(0.5)}
BATCH = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)


def run(microbatch_size, batch=BATCH, is_padding=None):
    grad_fn = jaxdp.clipped_grad(
        loss_fn, l2_clip_norm=0.5, microbatch_size=microbatch_size, return_per_example=True
    )
    return grad_fn(PARAMS, batch, is_padding=is_padding)


def assert_close(actual, expected, rtol=0.0, atol=0.0):
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=rtol, atol=atol), actual, expected
    )


@pytest.mark.parametrize("microbatch_size", [1, 4, 5, 11, 12, 13, 1000])
def test_microbatches_of_one_lot_give_one_sum(microbatch_size):
    # CASES 22 and 26: one ClippedSum with the lot's sensitivity, so noise is added once.
    is_padding = np.arange(12) == 7
    whole, expected = run(None, is_padding=is_padding)
    sliced, reported = run(microbatch_size, is_padding=is_padding)
    # Twelve additions of numbers of at most 0.5 in another order.
    assert_close(sliced.value, whole.value, atol=12 * 6 * 2**-24)
    assert sliced.l2_sensitivity == whole.l2_sensitivity == 0.5
    # The same operations on each example, compiled for another shape.
    assert_close(reported, expected, rtol=1e-6)


def test_filling_up_the_last_slice_makes_no_example_of_its_own():
    def fragile(w, x):
        return w / x  # not finite on a made-up example of zeros

    with jax.debug_nans(True), jax.debug_infs(True):
        grad_fn = jaxdp.clipped_grad(fragile, l2_clip_norm=10.0, microbatch_size=2)
        clipped = grad_fn(1.0, jnp.array([1.0, 2.0, 4.0]))
    assert clipped.value == 1.75


def test_microbatching_holds_the_gradients_of_one_slice_only():
    params, batch = jnp.zeros(2000), jnp.ones((64, 2000))

    def temporaries(microbatch_size):
        grad_fn = jaxdp.clipped_grad(
            lambda w, x: jnp.sum(jnp.sin(w * x)), l2_clip_norm=1.0, microbatch_size=microbatch_size
        )
        compiled = jax.jit(grad_fn).lower(params, batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # A slice of 4 needs a sixteenth of the batch's gradients; allow twice that.
    assert temporaries(4) < temporaries(None) / 8


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "2"])
def test_microbatch_sizes_that_are_no_positive_integer_are_refused(bad):
    with pytest.raises(ValueError, match="microbatch_size must be an integer >= 1, got"):
        run(bad)
