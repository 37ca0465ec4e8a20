"""A scan in chunks is the scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import report


def step(carry, x):
    key, total = carry
    draw = jax.random.normal(jax.random.fold_in(key, x["index"]), (3,))
    return (key, total + x["scale"] * draw), {"draw": draw, "norm": jnp.sum(total**2)}


INPUTS = {"index": jnp.arange(23), "scale": jnp.linspace(0.5, 2.0, 23)}


@pytest.mark.parametrize("num_chunks", [1, 4, 5, 23, 100])
def test_it_is_the_scan_bit_for_bit_however_it_is_cut(num_chunks):
    start = (jax.random.key(0), jnp.zeros(3))
    expected = jax.jit(lambda carry, x: jax.lax.scan(step, carry, x))(start, INPUTS)
    found = report.scan(step, start, INPUTS, description="steps", num_chunks=num_chunks)
    np.testing.assert_array_equal(found[0][1], expected[0][1])
    for name in ("draw", "norm"):
        np.testing.assert_array_equal(found[1][name], expected[1][name])


def test_in_a_pipe_nothing_is_printed(capsys):
    report.scan(lambda c, x: (c + x, x), jnp.float32(0.0), jnp.ones(4), description="steps")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "inputs", [{}, jnp.ones(0), (jnp.ones(2), jnp.ones(3)), jnp.float32(1.0)], ids=str
)
def test_inputs_without_one_common_axis_are_refused(inputs):
    with pytest.raises(ValueError, match=r"^inputs.* must be"):
        report.scan(step, None, inputs, description="steps")


def test_the_number_of_chunks_is_checked():
    with pytest.raises(ValueError, match=r"^num_chunks must be"):
        report.scan(step, None, INPUTS, description="steps", num_chunks=0)
