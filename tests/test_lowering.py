"""The whole private step is one program for every kind of device."""

import jax
import jax.export
import jax.numpy as jnp
import optax
import pytest

import jaxdp
from jaxdp import accounting as acc


def loss_fn(params, example, key):
    x, y = example
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    return optax.softmax_cross_entropy_with_integer_labels((x * keep) @ params["w"], y)


def one_call_step():
    private = jaxdp.make_private(
        loss_fn,
        optax.adam(1e-3),
        target_epsilon=2.0,
        delta=1e-5,
        num_examples=100,
        expected_batch_size=16,
        num_steps=100,
        l2_clip_norm=1.0,
        microbatch_size=3,
        loss_takes_key=True,
    )

    def step(state, key, x, y):
        batch = private.sample(key)
        return private.step(state, (x[batch.indices], y[batch.indices]), batch.is_padding)

    return step, private.init({"w": jnp.zeros((5, 3))}, jax.random.key(0))


def scheduled_step():
    tx = jaxdp.dp_adamw_bc(
        1e-3,
        l2_clip_norm=1.0,
        noise_multiplier=lambda step: 1.0 + 0.01 * step,
        expected_batch_size=16,
        key=jax.random.key(0),
        sampling_probability=0.01,
        target_epsilon=2.0,
        delta=1e-5,
    )
    params = {"w": jnp.zeros((5, 3))}
    grad_fn = jaxdp.clipped_grad(
        lambda params, x, y: loss_fn(params, (x, y), jax.random.key(0)), l2_clip_norm=1.0
    )

    def step(state, key, x, y):
        del key
        updates, state = tx.update(grad_fn(params, x, y), state, params)
        return updates, state, jaxdp.privacy_spent(state)

    return step, tx.init(params)


def accountant_step():
    def step(noise_multiplier, key, x, y):
        del key, x, y
        run = acc.PoissonSampled(0.01, acc.Gaussian(noise_multiplier)) * 1000 + acc.Laplace(2.0)
        return acc.epsilon(run, delta=1e-30), acc.delta(run, epsilon=1.0)

    return step, jnp.float32(1.0)


def exact_accountant_step():
    def step(noise_multiplier, key, x, y):
        del key, x, y
        run = acc.PoissonSampled(0.01, acc.Gaussian(noise_multiplier)) * 1000
        return acc.epsilon(run, delta=1e-30), acc.epsilon(run, delta=1e-5, accountant="rdp")

    return step, jnp.float32(1.0)


@pytest.mark.parametrize(
    "build", [one_call_step, scheduled_step, accountant_step, exact_accountant_step]
)
def test_the_private_step_lowers_for_cpu_cuda_and_tpu_and_never_calls_the_host(build):
    step, state = build()
    arguments = (state, jax.random.key(1), jnp.zeros((100, 5)), jnp.zeros(100, jnp.int32))
    exported = jax.export.export(jax.jit(step), platforms=("cpu", "cuda", "tpu"))(*arguments)
    program = exported.mlir_module()
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert "f64" not in program
    assert "callback" not in program
    assert "infeed" not in program
    assert "outfeed" not in program
