"""Every bad call is a ValueError that names the argument and the value received."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp

W, X = jnp.zeros(2), jnp.ones((3, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of l2_clip_norm and l1_clip_norm must be given, got l2_clip_norm=None"),
        ({"l2_clip_norm": 1.0, "l1_clip_norm": 2.0}, "exactly one of .* l1_clip_norm=2.0"),
        ({"l2_clip_norm": 0.0}, "l2_clip_norm must be a finite number > 0, got 0.0"),
        ({"l2_clip_norm": -1}, "l2_clip_norm must be .*, got -1"),
        ({"l2_clip_norm": np.nan}, "l2_clip_norm must be .*, got nan"),
        ({"l2_clip_norm": np.inf}, "l2_clip_norm must be .*, got inf"),
        ({"l2_clip_norm": True}, "l2_clip_norm must be .*, got True"),
        ({"l2_clip_norm": "1"}, "l2_clip_norm must be .*, got '1'"),
        ({"l2_clip_norm": 1 + 0j}, "l2_clip_norm must be .*, got "),
        ({"l2_clip_norm": np.ones(2)}, "l2_clip_norm must be .*, got array"),
        ({"l2_clip_norm": 1e-31}, r"l2_clip_norm must be a number in \[1e-30, 1e\+30\], got 1e-31"),
        ({"l2_clip_norm": 1e31}, "l2_clip_norm must be .*, got 1e"),
        ({"l1_clip_norm": jnp.float32(-2.0)}, "l1_clip_norm must be .*, got Array"),
        ({"l2_clip_norm": {"a": 1.0, "b": 0}}, r"l2_clip_norm\['b'\] must be .*, got 0"),
        ({"l2_clip_norm": 1.0, "method": "flat"}, "method must be one of 'clip', 'automatic', got"),
        ({"l2_clip_norm": 1.0, "strategy": "ghost"}, "strategy must be one of 'auto', 'bookkeep"),
        ({"l2_clip_norm": 1.0, "microbatch_size": 0}, "microbatch_size must be .*, got 0"),
        ({"l2_clip_norm": 1.0, "microbatch_size": 1.5}, "microbatch_size must be .*, got 1.5"),
    ],
)
def test_options_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        jaxdp.clipped_grad(jnp.vdot, **arguments)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((jnp.zeros(2, int), X), {}, "params must be a floating-point array, got .*int32"),
        (({"w": W, "k": 3}, X), {}, r"params\['k'\] must be a floating-point array"),
        ((jnp.zeros(2, jnp.complex64), X), {}, "params must be .*complex64"),
        (({"w": "zero"}, X), {}, r"params\['w'\] must be .*, got 'zero'"),
        ((W,), {}, r"batch must be a pytree with at least one array, got \(\)"),
        ((W, {}), {}, "batch must be a pytree with at least one array"),
        ((W, 1.0), {}, r"batch\[0\] must be an array whose first axis is the example, got 1.0"),
        (
            (W, X, X[:2]),
            {},
            r"batch\[1\] must be of as many .* batch\[0\], that is 3, got .*\(2, 2",
        ),
        (
            (W, {"a": X, "b": X[0]}),
            {},
            r"batch\[0\]\['b'\] must be of as many .* batch\[0\]\['a'\], that is 3, got .*\(2,\)",
        ),
        ((W, X), {"is_padding": jnp.zeros(2, bool)}, r"is_padding must be .* \(3,\), got .*False"),
        ((W, X), {"is_padding": jnp.zeros(3)}, r"is_padding must be .* \(3,\), got .*0., 0., 0"),
        ((W, X), {"is_padding": True}, r"is_padding must be .* \(3,\), got True"),
        ((W, X), {"key": 0}, "key must be a scalar typed PRNG key, .*, got 0"),
        ((W, X), {"key": np.uint32([0, 1])}, "key must be a scalar typed PRNG key"),
        ((W, X), {"key": jax.random.split(jax.random.key(0))}, "key must be a scalar typed"),
    ],
)
def test_bad_parameters_and_batches_are_refused(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        jaxdp.clipped_grad(jnp.vdot, l2_clip_norm=1.0)(*args, **kwargs)


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ({"a": 1.0}, r"l2_clip_norm must be .*pytree prefix .*, got \{'a': 1.0\}"),
        ({"a": 1.0, "b": None}, "l2_clip_norm must be .*pytree prefix .*, got .*None"),
        ({"a": 1.0, "b": [1.0, 2.0]}, "l2_clip_norm must be .*pytree prefix"),
        ([1.0, 1.0], r"l2_clip_norm must be .*pytree prefix .*, got \[1.0, 1.0\]"),
    ],
)
def test_clip_norms_that_do_not_cover_the_parameters_are_refused(norms, message):
    params = {"a": W, "b": W}

    def loss_fn(params, x):
        return jnp.vdot(params["a"] + params["b"], x)

    with pytest.raises(ValueError, match=message):
        jaxdp.clipped_grad(loss_fn, l2_clip_norm=norms)(params, X)


@pytest.mark.parametrize(
    ("loss_fn", "has_aux", "message"),
    [
        (lambda w, x: w * x, False, r"loss_fn's output must be .* scalar .*, got 'float32\[2\]'"),
        (lambda w, x: (w * x)[:1], False, r"loss_fn's output must be .*, got 'float32\[1\]'"),
        (lambda w, x: jnp.int32(1), False, "loss_fn's output must be .*, got 'int32"),
        (lambda w, x: jnp.vdot(w, x) + 0j, False, "loss_fn's output must be .*, got 'complex64"),
        (lambda w, x: None, False, "loss_fn's output must be .*, got None"),
        (lambda w, x: (jnp.vdot(w, x), x), False, r"loss_fn's output must be .*has_aux=True"),
        (lambda w, x: jnp.vdot(w, x), True, r"loss_fn's output must be a pair \(loss, aux\)"),
        (lambda w, x: (w, x, x), True, r"loss_fn's output must be a pair \(loss, aux\)"),
        (lambda w, x: (w, x), True, r"loss_fn's output must be .*, got 'float32\[2\]'"),
    ],
)
def test_losses_that_are_no_scalar_are_refused(loss_fn, has_aux, message):
    with pytest.raises(ValueError, match=message):
        jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, has_aux=has_aux)(W, X)


def test_a_loss_that_cannot_be_called_is_refused():
    with pytest.raises(ValueError, match=re.escape("loss_fn must be a function, got 3")):
        jaxdp.clipped_grad(3, l2_clip_norm=1.0)


def test_bad_calls_are_refused_inside_a_compiled_program_too():
    grad_fn = jax.jit(jaxdp.clipped_grad(jnp.vdot, l2_clip_norm=1.0))
    with pytest.raises(ValueError, match=r"batch\[1\] must be of as many examples"):
        grad_fn(W, X, X[:1])
