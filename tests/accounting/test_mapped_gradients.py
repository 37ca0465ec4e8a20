"""Gradients under vmap are those one by one."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import accounting as acc

# Noise multiplier, sampling probability, steps, epsilon.
RUNS = [
    [0.361, 0.8823, 2.0, 0.01524],
    [29.0, 1e-4, 1941.0, 3e-4],
    [2.0, 0.01, 100.0, 1.0],
    [1.0, 0.05, 300.0, 2.0],
]


def test_mapped_gradients_of_log_delta_are_those_one_by_one():
    def log_delta(x):
        s, q, n, epsilon = x
        run = acc.PoissonSampled(q, acc.Gaussian(s)) * n
        return acc.log_delta(run, epsilon, accountant="rdp")

    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        rows = jnp.asarray(RUNS, jnp.float64)
        mapped = np.asarray(jax.jit(jax.vmap(jax.grad(log_delta)))(rows))
        single = np.stack([jax.jit(jax.grad(log_delta))(row) for row in rows])
    # The order is found to 1e-10; in a bend derivatives are off by some thousand times that.
    np.testing.assert_allclose(mapped, single, rtol=1e-5)
    assert np.all(single[:, 3] < 0.0)


def test_the_gradient_in_a_bend_is_that_of_finite_differences():
    s, n, log_delta = 29.3557, 1941.0, -28.674

    def epsilon(q):
        run = acc.PoissonSampled(q, acc.Gaussian(s)) * n
        return acc.epsilon(run, jnp.exp(log_delta), accountant="rdp")

    q, step = 1.1321e-4, 1e-9
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        found = float(jax.jit(jax.grad(epsilon))(jnp.float64(q)))
        program = jax.jit(epsilon)
        above, below = float(program(jnp.float64(q + step))), float(program(jnp.float64(q - step)))
    # The third derivative times step^2, and rounding: 1e-16 of epsilon over 2e-9.
    assert abs(found / ((above - below) / (2.0 * step)) - 1.0) < 1e-4
