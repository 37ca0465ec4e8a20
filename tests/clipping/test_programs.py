"""Strategies agree on random programs put together from what the strategies know."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxdp
from tests.clipping.zoo.compiling import compiled

BATCH, TIME, WIDTH, VOCABULARY = 5, 3, 4, 6
SHAPES = {
    "a": (WIDTH, WIDTH),
    "b": (WIDTH, WIDTH),
    "flat": (WIDTH * WIDTH,),
    "big": (WIDTH, 2 * WIDTH),
    "stack": (3, WIDTH, WIDTH),
    "kernel": (2, WIDTH, WIDTH),
    "table": (VOCABULARY, WIDTH),
    "bias": (WIDTH,),
    "scale": (WIDTH,),
}

# Where a matrix comes from: whole parameters and overlapping parts of them.
MATRICES = {
    "a": lambda p: p["a"],
    "b": lambda p: p["b"],
    "flat": lambda p: p["flat"].reshape(WIDTH, WIDTH),
    "left half": lambda p: p["big"][:, :WIDTH],
    "middle": lambda p: p["big"][:, 2 : 2 + WIDTH],
    "slice of the stack": lambda p: p["stack"][1],
    "kernel's tap": lambda p: p["kernel"][0],
    "rows of the table": lambda p: p["table"][1 : 1 + WIDTH],
}

# What happens to it before it is used.
VIEWS = {
    "as it is": lambda w: w,
    "transposed": lambda w: w.T,
    "reshaped": lambda w: w.reshape(2, -1).reshape(WIDTH, WIDTH),
    "halved": lambda w: 0.5 * w,
    "negated": lambda w: -w,
    "reversed": lambda w: w[::-1],
    "cast": lambda w: w.astype(jnp.float32),
    "halves swapped": lambda w: jnp.concatenate([w[:, 2:], w[:, :2]], axis=1),
    "squashed": jnp.tanh,
    "symmetric": lambda w: w + w.T,
    "stopped": jax.lax.stop_gradient,
}

# How it is used on activations [TIME, WIDTH].
PRODUCTS = {
    "right": lambda w, x: x @ w,
    "left": lambda w, x: (w @ x.T).T,
    "einsum": lambda w, x: jnp.einsum("dp,td->tp", w, x),
    "by rows": lambda w, x: jax.vmap(lambda row: row @ w)(x),
    "twice": lambda w, x: jnp.tanh(x @ w) @ w,
    "elementwise": lambda w, x: x * w[:TIME],
}

# What the use is wrapped in.
WRAPPERS = {
    "plain": lambda f, w, x: f(w, x),
    "jit": lambda f, w, x: jax.jit(f)(w, x),
    "checkpoint": lambda f, w, x: jax.checkpoint(f)(w, x),
    "closed over in a checkpoint": lambda f, w, x: jax.checkpoint(lambda x: f(w, x))(x),
    "steps of a scan": lambda f, w, x: jax.lax.scan(
        lambda x, _: (jnp.tanh(f(w, x)), None), x, length=2
    )[0],
    "counted loop": lambda f, w, x: jax.lax.fori_loop(0, 2, lambda _, x: jnp.tanh(f(w, x)), x),
    "branch": lambda f, w, x: jax.lax.cond(x[0, 0] > 0, lambda: f(w, x), lambda: -x),
}


def dense(matrix, view, product, wrapper):
    def step(params, x, _):
        w = VIEWS[view](MATRICES[matrix](params))
        return WRAPPERS[wrapper](PRODUCTS[product], w, x)

    return step


def scan_over_layers(params, x, _):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["stack"])[0]


def ensemble(params, x, _):
    return jnp.sum(jax.vmap(lambda w: jnp.tanh(x @ w))(params["stack"]), axis=0)


def recurrence(params, x, _):
    def step(h, row):
        h = jnp.tanh(h @ params["a"] + row @ params["b"] + params["bias"])
        return h, h

    return jax.lax.scan(step, params["scale"], x)[1]


def convolution(params, x, _):
    return jax.lax.conv_general_dilated(
        x[None], params["kernel"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )[0]


def lookup(params, x, tokens):
    return x + params["table"][tokens]


def attention_over_the_table(params, x, _):
    return jax.nn.softmax(x @ params["table"].T) @ params["table"]


def bias_and_scale(params, x, _):
    return x * params["scale"][None] + params["bias"][None]


def sort_and_accumulate(_, x, tokens):
    return jnp.cumsum(jnp.sort(x, axis=1), axis=0) * jnp.tanh(tokens.astype(x.dtype))[:, None]


OTHERS = {
    step.__name__: step
    for step in [
        scan_over_layers,
        ensemble,
        recurrence,
        convolution,
        lookup,
        attention_over_the_table,
        bias_and_scale,
        sort_and_accumulate,
    ]
}

choices = [st.sampled_from(list(table)) for table in (MATRICES, VIEWS, PRODUCTS, WRAPPERS)]
steps = st.one_of(st.tuples(*choices), st.tuples(*choices), st.sampled_from(list(OTHERS)))
programs = st.lists(steps, min_size=1, max_size=4)


def loss_of(program):
    """The loss that a list of names of steps describes."""
    made = [OTHERS[step] if isinstance(step, str) else dense(*step) for step in program]

    def loss_fn(params, x, tokens):
        for step in made:
            x = jnp.tanh(step(params, x, tokens)) + 0.3 * x
        return jnp.sum(jnp.sin(x))

    return loss_fn


def draw(*shape, seed):
    return np.float32(np.random.default_rng(seed).standard_normal(shape))


PARAMS = {name: 0.6 * draw(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
DATA = draw(BATCH, TIME, WIDTH, seed=100)
TOKENS = np.random.default_rng(101).integers(0, VOCABULARY, (BATCH, TIME)).astype(np.int32)


def clipped_sums(program, strategy):
    """The sums without clipping and with half of the examples clipped, each as one vector."""

    @compiled
    def run(threshold):
        grad_fn = jaxdp.clipped_grad(
            loss_of(program), l2_clip_norm=threshold, strategy=strategy, return_per_example=True
        )
        clipped, reported = grad_fn(PARAMS, DATA, TOKENS)
        flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(clipped.value)])
        return flat, reported.norm

    # Both thresholds of one type, so that one program serves both.
    whole, norms = run(np.float32(1e6))
    clipped, _ = run(np.float32(np.median(norms) + 1e-3))
    return np.asarray(whole, np.float64), np.asarray(clipped, np.float64)


@pytest.mark.newest_only
@settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(programs)
def test_strategies_agree_on_random_programs(program):
    sums, expected = (clipped_sums(program, strategy) for strategy in ("auto", "per_example"))
    for a, e in zip(sums, expected, strict=True):
        assert np.linalg.norm(a - e) <= 1e-5 * np.linalg.norm(e), program
