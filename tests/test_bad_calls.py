"""Every bad call is a ValueError that names the argument and shows the value."""

import math

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxdp
from jaxdp import accounting as acc
from jaxdp import noise, sampling, sensitivity
from jaxdp.mechanisms import gaussian, laplace

KEY = jax.random.key(0)
NAN, INF = math.nan, math.inf


def loss_fn(params, example):
    return jnp.sum(params * example)


def private(**more):
    arguments = {
        "target_epsilon": 1.0,
        "delta": 1e-5,
        "num_examples": 100,
        "expected_batch_size": 10,
        "num_steps": 5,
        "l2_clip_norm": 1.0,
    } | more
    return jaxdp.make_private(loss_fn, optax.sgd(0.1), **arguments)


def optimizer(**more):
    return jaxdp.dp_sgd(
        0.1, **({"noise_multiplier": 1.0, "expected_batch_size": 8, "key": KEY} | more)
    )


def batch(**more):
    return sampling.poisson_batch(
        KEY, **({"num_examples": 10, "sampling_probability": 0.5, "max_batch_size": 8} | more)
    )


def calibrate(**more):
    return acc.calibrate(acc.Gaussian, **({"target_epsilon": 1.0, "delta": 1e-5} | more))


RUN = acc.PoissonSampled(0.1, acc.Gaussian(1.0))

# (argument, value as shown, call)
CALLS = [
    ("noise_multiplier", "-1.0", lambda: acc.Gaussian(-1.0)),
    ("noise_multiplier", "nan", lambda: acc.Gaussian(NAN)),
    ("noise_multiplier", "inf", lambda: acc.Gaussian(INF)),
    ("noise_multiplier", "'1'", lambda: acc.Gaussian("1")),
    ("noise_multiplier", "True", lambda: acc.Gaussian(True)),
    ("noise_multiplier", "-0.5", lambda: acc.Laplace(-0.5)),
    ("sampling_probability", "1.5", lambda: acc.PoissonSampled(1.5, acc.Gaussian(1.0))),
    ("sampling_probability", "-0.1", lambda: acc.PoissonSampled(-0.1, acc.Gaussian(1.0))),
    ("sampling_probability", "nan", lambda: acc.PoissonSampled(NAN, acc.Gaussian(1.0))),
    ("event", "3", lambda: acc.PoissonSampled(0.1, 3)),
    ("event", "PoissonSampled", lambda: acc.PoissonSampled(0.1, RUN)),
    ("count", "-1", lambda: acc.Repeated(RUN, -1)),
    ("count", "1.5", lambda: acc.Repeated(RUN, 1.5)),
    ("event", "'x'", lambda: acc.epsilon("x", 1e-5)),
    ("delta", "0", lambda: acc.epsilon(RUN, 0)),
    ("delta", "1", lambda: acc.epsilon(RUN, 1)),
    ("delta", "1.5", lambda: acc.epsilon(RUN, 1.5)),
    ("delta", "-1e-05", lambda: acc.epsilon(RUN, -1e-5)),
    ("delta", "nan", lambda: acc.epsilon(RUN, NAN)),
    ("accountant", "'prv'", lambda: acc.epsilon(RUN, 1e-5, accountant="prv")),
    ("accountant", "'exact'", lambda: acc.epsilon(
        acc.Laplace(1.0), 1e-5, accountant="exact")),
    ("epsilon", "-1", lambda: acc.delta(RUN, -1)),
    ("epsilon", "inf", lambda: acc.delta(RUN, INF)),
    ("orders", r"\[1.0, 2.0\]", lambda: acc.rdp(RUN, [1.0, 2.0])),
    ("orders", r"\[\]", lambda: acc.rdp_epsilon(RUN, 1e-5, orders=[])),
    ("orders", "nan", lambda: acc.rdp(RUN, NAN)),
    ("target_epsilon", "0", lambda: calibrate(target_epsilon=0)),
    ("target_epsilon", "-1", lambda: calibrate(target_epsilon=-1)),
    ("target_epsilon", "nan", lambda: calibrate(target_epsilon=NAN)),
    ("target_epsilon", "1e-09", lambda: calibrate(target_epsilon=1e-9, delta=1e-12)),
    ("delta", "2.0", lambda: calibrate(delta=2.0)),
    ("make_event", "1.0", lambda: acc.calibrate(1.0, target_epsilon=1.0, delta=1e-5)),
    ("epsilon", "1.0", lambda: gaussian.classical_stddev(epsilon=1.0, delta=1e-5)),
    ("epsilon", "2.5", lambda: gaussian.classical_stddev(epsilon=2.5, delta=1e-5)),
    ("delta", "0.0", lambda: gaussian.stddev(epsilon=1.0, delta=0.0)),
    ("l2_sensitivity", "0.0", lambda: gaussian.stddev(epsilon=1.0, delta=0.1, l2_sensitivity=0.0)),
    ("stddev", "-1.0", lambda: gaussian.release(KEY, jnp.zeros(2), stddev=-1.0)),
    ("value", "int32", lambda: gaussian.release(KEY, jnp.zeros(2, jnp.int32), stddev=1.0)),
    ("epsilon", "-1.0", lambda: gaussian.delta(epsilon=-1.0, noise_multiplier=1.0)),
    ("epsilon", "0.0", lambda: laplace.scale(epsilon=0.0)),
    ("scale", "nan", lambda: laplace.release(KEY, jnp.zeros(2), scale=NAN)),
    ("delta", "1.0", lambda: laplace.epsilon(delta=1.0, noise_multiplier=1.0)),
    ("neighboring_relation", "'swap'", lambda: sensitivity.count(neighboring_relation="swap")),
    ("num_bins", "0", lambda: sensitivity.histogram(num_bins=0)),
    ("num_examples", "0", lambda: batch(num_examples=0)),
    ("sampling_probability", "1.5", lambda: batch(sampling_probability=1.5)),
    ("sampling_probability", "1e-10", lambda: batch(sampling_probability=1e-10)),
    ("max_batch_size", "-1", lambda: batch(max_batch_size=-1)),
    ("max_batch_size", "2.0", lambda: batch(max_batch_size=2.0)),
    ("num_steps", "0", lambda: noise.precompute(KEY, jnp.zeros(2), 0)),
    ("precompute_steps", "0", lambda: jaxdp.add_gaussian_noise(1.0, key=KEY, precompute_steps=0)),
    ("key", "0", lambda: jaxdp.add_gaussian_noise(1.0, key=0)),
    ("key", "None", lambda: jaxdp.add_laplace_noise(1.0, key=None)),
    ("key", "Array", lambda: optimizer(key=jax.random.PRNGKey(0))),
    ("noise_multiplier", "-2.0", lambda: optimizer(noise_multiplier=-2.0)),
    ("expected_batch_size", "0", lambda: optimizer(expected_batch_size=0)),
    ("expected_batch_size", "inf", lambda: jaxdp.scale_by_batch_size(INF)),
    ("target_epsilon", "0.0", lambda: optimizer(
        sampling_probability=0.1, target_epsilon=0.0, delta=1e-5)),
    ("delta", "None", lambda: optimizer(sampling_probability=0.1, target_epsilon=1.0)),
    ("sampling_probability", "2.0", lambda: optimizer(
        sampling_probability=2.0, target_epsilon=1.0, delta=1e-5)),
    ("l2_clip_norm", "-1.0", lambda: jaxdp.dp_adamw_bc(
        0.1, l2_clip_norm=-1.0, noise_multiplier=1.0, expected_batch_size=8, key=KEY)),
    ("l2_clip_norm", "0.0", lambda: jaxdp.clipped_grad(loss_fn, l2_clip_norm=0.0)),
    ("l2_clip_norm", "nan", lambda: jaxdp.clipped_grad(loss_fn, l2_clip_norm=NAN)),
    ("l2_clip_norm", "-1.0", lambda: jaxdp.clip_per_example(-1.0)),
    ("loss_fn", "3", lambda: jaxdp.clipped_grad(3, l2_clip_norm=1.0)),
    ("microbatch_size", "0", lambda: jaxdp.clipped_grad(
        loss_fn, l2_clip_norm=1.0, microbatch_size=0)),
    ("method", "'flat'", lambda: jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, method="flat")),
    ("l2_sensitivity", "-1.0", lambda: jaxdp.ClippedSum(jnp.zeros(2), -1.0)),
    ("l1_sensitivity", "nan", lambda: jaxdp.ClippedSum(jnp.zeros(2), 1.0, NAN)),
    ("target_epsilon", "0.0", lambda: private(target_epsilon=0.0)),
    ("delta", "1.0", lambda: private(delta=1.0)),
    ("num_examples", "0", lambda: private(num_examples=0)),
    ("num_examples", "100.0", lambda: private(num_examples=100.0)),
    ("expected_batch_size", "101", lambda: private(expected_batch_size=101)),
    ("expected_batch_size", "-1", lambda: private(expected_batch_size=-1)),
    ("num_steps", "0", lambda: private(num_steps=0)),
    ("l2_clip_norm", "inf", lambda: private(l2_clip_norm=INF)),
    ("microbatch_size", "-3", lambda: private(microbatch_size=-3)),
    ("key", "0", lambda: private().init(jnp.zeros(2), 0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "shown", "call"), CALLS, ids=[f"{name} {shown}" for name, shown, _ in CALLS]
)
def test_a_bad_call_is_refused_by_name_and_value(argument, shown, call):
    # The message begins with the argument (an element of it, such as value['a']) and ends
    # with what was given.
    with pytest.raises(ValueError, match=rf"^{argument}\b.* must be .*, got .*{shown}"):
        call()


def test_there_are_at_least_sixty_bad_calls():
    assert len(CALLS) >= 60
