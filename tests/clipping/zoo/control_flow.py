"""Programs inside the loss: calls, custom rules, checkpoints, loops and branches."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.clipping.zoo.entry import entry, loss_of


def dense(params, x):
    return jnp.tanh(x @ params["w"] + params["b"][None])


def dense_params(draw, *sizes):
    return {"w": draw.weights(*sizes), "b": draw(*sizes[:-2], sizes[-1])}


@entry()
def nested_jit(draw):
    inner = jax.jit(dense)

    @jax.jit
    def outer(params, x):
        return inner(params["out"], jnp.sin(inner(params["in"], x)))

    def loss_fn(params, x):
        return loss_of(outer(params, x))

    params = {"in": dense_params(draw, 3, 5), "out": dense_params(draw, 5, 2)}
    return loss_fn, params, (draw.inputs(4, 3),)


@entry()
def one_jitted_layer_called_with_two_parameters_and_twice_with_one(draw):
    inner = jax.jit(dense)

    def loss_fn(params, x):
        x = inner(params["b"], inner(params["a"], x))
        return loss_of(inner(params["a"], x))

    params = {"a": dense_params(draw, 4, 4), "b": dense_params(draw, 4, 4)}
    return loss_fn, params, (draw.inputs(3, 4),)


@entry()
def custom_jvp_of_data(draw):
    @jax.custom_jvp
    def straight_through(x):
        return jnp.round(x)

    straight_through.defjvp(lambda primals, tangents: (jnp.round(primals[0]), tangents[0]))

    def loss_fn(params, x):
        return loss_of(jax.nn.relu(straight_through(3 * dense(params, x))))

    return loss_fn, dense_params(draw, 3, 5), (draw.inputs(4, 3),)


@entry()
def custom_vjp_of_data(draw):
    @jax.custom_vjp
    def reversed_gradient(x):
        return x

    reversed_gradient.defvjp(lambda x: (x, None), lambda _, g: (-2 * g,))

    def loss_fn(params, x):
        return loss_of(reversed_gradient(dense(params, x)) @ params["w"].T)

    return loss_fn, dense_params(draw, 3, 5), (draw.inputs(4, 3),)


@entry(falls_back=True)
def custom_vjp_with_a_parameter_inside(draw):
    @jax.custom_vjp
    def layer(w, x):
        return x @ w

    def backward(residuals, g):
        w, x = residuals
        # Not the derivative: what the author wrote counts.
        return 0.5 * x.T @ jnp.clip(g, -1, 1), g @ w.T

    layer.defvjp(lambda w, x: (x @ w, (w, x)), backward)

    def loss_fn(params, x):
        return loss_of(layer(params["custom"], jnp.tanh(x @ params["plain"])))

    params = {"plain": draw(3, 4), "custom": draw(4, 5)}
    return loss_fn, params, (draw.inputs(6, 3),)


@entry(falls_back=True)
def custom_jvp_with_a_parameter_inside(draw):
    @jax.custom_jvp
    def scaled(w, x):
        return w[None] * x

    @scaled.defjvp
    def _(primals, tangents):
        return scaled(*primals), scaled(tangents[0], primals[1]) + scaled(primals[0], tangents[1])

    def loss_fn(params, x):
        return loss_of(scaled(params["scale"], x @ params["w"]))

    return loss_fn, {"scale": draw(4), "w": draw(3, 4)}, (draw.inputs(5, 3),)


@entry()
def checkpointed_layers(draw):
    def loss_fn(params, x):
        for layer in params:
            x = jax.checkpoint(dense)(layer, x)
        return loss_of(x)

    return loss_fn, [dense_params(draw, 4, 4) for _ in range(3)], (draw.inputs(5, 4),)


@entry()
def checkpoints_in_checkpoints_with_a_policy(draw):
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    layer = jax.checkpoint(dense, policy=policy)

    @jax.checkpoint
    def two_layers(params, x):
        return layer(params["second"], layer(params["first"], x))

    def loss_fn(params, x):
        return loss_of(two_layers(params, x))

    params = {"first": dense_params(draw, 3, 4), "second": dense_params(draw, 4, 3)}
    return loss_fn, params, (draw.inputs(5, 3),)


@entry()
def scan_over_layers_with_stacked_parameters(draw):
    def loss_fn(params, x):
        return loss_of(lax.scan(lambda x, layer: (x + dense(layer, x), None), x, params)[0])

    return loss_fn, dense_params(draw, 3, 4, 4), (draw.inputs(5, 4),)


@entry()
def scan_over_wide_layers_with_few_positions(draw):
    def loss_fn(params, x):
        return loss_of(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0])

    return loss_fn, draw.weights(3, 24, 24), (draw.inputs(2, 24),)


@entry()
def scan_over_checkpointed_layers(draw):
    @jax.checkpoint
    def layer(x, params):
        return x + dense(params, x), jnp.sum(x)

    def loss_fn(params, x):
        x, sums = lax.scan(layer, x, params)
        return loss_of(x) + loss_of(sums)

    return loss_fn, dense_params(draw, 3, 4, 4), (draw.inputs(5, 4),)


@entry()
def scan_backwards_over_layers_with_a_head_outside(draw):
    def loss_fn(params, x):
        def layer(x, params):
            x = dense(params, x)
            return x, x

        _, all_outputs = lax.scan(layer, x, params["layers"], reverse=True, unroll=2)
        return loss_of(all_outputs @ params["head"])

    params = {"layers": dense_params(draw, 3, 4, 4), "head": draw(4, 2)}
    return loss_fn, params, (draw.inputs(5, 4),)


def rnn_params(draw, inputs, hidden, gates=1):
    return {
        "in": draw.weights(inputs, gates * hidden),
        "hidden": draw.weights(hidden, gates * hidden),
        "b": draw(gates * hidden),
    }


@entry()
def recurrent_network(draw):
    def loss_fn(params, x):
        def step(h, row):
            h = jnp.tanh(row @ params["in"] + h @ params["hidden"] + params["b"])
            return h, h

        _, outputs = lax.scan(step, jnp.zeros(4, x.dtype), x)
        return loss_of(outputs)

    return loss_fn, rnn_params(draw, 3, 4), (draw.inputs(7, 3),)


@entry(falls_back=True)
def recurrent_network_with_a_learned_start_and_a_wide_state(draw):
    def loss_fn(params, x):
        def step(h, row):
            return jnp.tanh(row @ params["in"] + h @ params["hidden"] + params["b"]), None

        return loss_of(lax.scan(step, params["start"], x)[0])

    return loss_fn, rnn_params(draw, 3, 20) | {"start": draw(20)}, (draw.inputs(4, 3),)


def lstm_step(params, state, row):
    h, c = state
    gates = row @ params["in"] + h @ params["hidden"] + params["b"]
    i, f, g, o = jnp.split(gates, 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


@entry()
def lstm(draw):
    def loss_fn(params, x):
        zeros = jnp.zeros(5, x.dtype)
        step = functools.partial(lstm_step, params["cell"])
        (h, _), outputs = lax.scan(step, (zeros, zeros), x)
        return loss_of(outputs @ params["head"]) + loss_of(h)

    params = {"cell": rnn_params(draw, 3, 5, gates=4), "head": draw.weights(5, 2)}
    return loss_fn, params, (draw.inputs(6, 3),)


@entry()
def lstm_over_embedded_tokens(draw):
    def loss_fn(params, tokens):
        zeros = jnp.zeros(4, params["table"].dtype)
        step = functools.partial(lstm_step, params["cell"])
        _, outputs = lax.scan(step, (zeros, zeros), params["table"][tokens])
        return loss_of(outputs)

    params = {"cell": rnn_params(draw, 3, 4, gates=4), "table": draw(9, 3)}
    return loss_fn, params, (draw.tokens(9, 6),)


@entry()
def lookups_inside_a_scan(draw):
    def loss_fn(params, tokens):
        def step(h, token):
            return jnp.tanh(h @ params["w"] + params["table"][token]), None

        return loss_of(lax.scan(step, jnp.zeros(4, params["w"].dtype), tokens)[0])

    return loss_fn, {"w": draw.weights(4, 4), "table": draw(9, 4)}, (draw.tokens(5, 7),)


@entry()
def parameters_carried_unchanged_through_a_scan(draw):
    def loss_fn(params, x):
        def step(carry, row):
            params, h = carry
            return (params, jnp.tanh(row @ params["in"] + h @ params["hidden"])), None

        (_, h), _ = lax.scan(step, (params, jnp.zeros(4, x.dtype)), x)
        return loss_of(h @ params["hidden"])

    params = {"in": draw.weights(3, 4), "hidden": draw.weights(4, 4)}
    return loss_fn, params, (draw.inputs(5, 3),)


@entry()
def parameters_carried_unchanged_through_a_counted_loop(draw):
    def loss_fn(params, x):
        def step(_, carry):
            params, x = carry
            return params, dense(params, x)

        return loss_of(lax.fori_loop(0, 3, step, (params, x))[1])

    return loss_fn, dense_params(draw, 4, 4), (draw.inputs(5, 4),)


@entry()
def counted_loop_over_stacked_layers(draw):
    def loss_fn(params, x):
        def layer(i, x):
            return dense(jax.tree.map(lambda leaf: leaf[i], params), x)

        return loss_of(lax.fori_loop(0, 3, layer, x))

    return loss_fn, dense_params(draw, 3, 4, 4), (draw.inputs(5, 4),)


@entry(falls_back=True)
def parameter_updated_inside_a_scan(draw):
    def loss_fn(fast, x):
        def step(w, row):
            # Fast weights: the parameter is where they start.
            return 0.9 * w + 0.1 * jnp.outer(row, jnp.tanh(row @ w)), row @ w

        w, outputs = lax.scan(step, fast, x)
        return loss_of(outputs) + loss_of(w)

    return loss_fn, draw(3, 3), (draw.inputs(4, 3),)


# The margin for the rounding of its Gram form is above 1e-5.
@entry(rtol=2e-5)
def nested_scans(draw):
    def loss_fn(params, x):
        def layer(x, w):
            def step(h, row):
                h = jnp.tanh(row @ w + h @ params["shared"])
                return h, h

            return lax.scan(step, jnp.zeros(4, x.dtype), x)[1], None

        return loss_of(lax.scan(layer, x, params["stacked"])[0])

    params = {"stacked": draw.weights(3, 4, 4), "shared": draw.weights(4, 4)}
    return loss_fn, params, (draw.inputs(5, 4),)


@entry(falls_back=True)
def condition_on_the_example(draw):
    def loss_fn(params, x):
        y = lax.cond(
            x[0, 0] > 0,
            lambda: jnp.tanh(x @ params["left"]),
            lambda: x @ params["right"] + 0 * x @ params["left"],
        )
        return loss_of(y)

    return loss_fn, {"left": draw(3, 4), "right": draw(3, 4)}, (draw.inputs(5, 3),)


@entry(falls_back=True)
def switch_between_layers(draw):
    def loss_fn(params, which, x):
        branches = [lambda x, i=i: dense(params[i], x) for i in range(3)]
        return loss_of(lax.switch(which, branches, x))

    return (
        loss_fn,
        [dense_params(draw, 3, 4) for _ in range(3)],
        (draw.tokens(3), draw.inputs(5, 3)),
    )


@entry(falls_back=True)
def condition_inside_a_scan(draw):
    def loss_fn(params, x, flags):
        def step(h, inputs):
            row, flag = inputs
            h = lax.cond(flag, lambda h: jnp.tanh(h @ params["w"] + row), lambda h: h - row, h)
            return h, h

        return loss_of(lax.scan(step, params["start"], (x, flags))[1])

    params = {"w": draw.weights(4, 4), "start": draw(4)}
    return loss_fn, params, (draw.inputs(6, 4), draw.tokens(2, 6) > 0)


@entry()
def while_loop_under_stop_gradient(draw):
    def loss_fn(params, x):
        def halve(size):
            return size / 2

        hidden = dense(params, x)
        size = lax.while_loop(lambda size: size > 0.1, halve, jnp.max(jnp.abs(x)) + 1)
        return loss_of(hidden * lax.stop_gradient(size))

    return loss_fn, dense_params(draw, 3, 4), (draw.inputs(5, 3),)


@entry()
def while_loop_over_stopped_parameters(draw):
    def loss_fn(params, x):
        h = lax.stop_gradient(x[0])
        w = lax.stop_gradient(params["w"])
        h = lax.while_loop(lambda h: jnp.sum(h * h) > 0.1, lambda h: 0.5 * jnp.tanh(h @ w), h)
        return loss_of(dense(params, x) + h[None])

    return loss_fn, dense_params(draw, 4, 4), (draw.inputs(5, 4),)


@entry()
def counted_loop(draw):
    def loss_fn(params, x):
        return loss_of(lax.fori_loop(0, 4, lambda _, x: dense(params, x), x))

    return loss_fn, dense_params(draw, 4, 4), (draw.inputs(2, 4),)


@entry()
def map_over_positions(draw):
    def loss_fn(params, x):
        return loss_of(lax.map(lambda row: jnp.tanh(row @ params["w"]) + params["b"], x))

    return loss_fn, dense_params(draw, 3, 4), (draw.inputs(6, 3),)


@entry()
def associative_scan_of_gates(draw):
    def loss_fn(params, x):
        decays = jax.nn.sigmoid(x @ params["decay"])

        def combine(left, right):
            return left[0] * right[0], left[1] * right[0] + right[1]

        return loss_of(lax.associative_scan(combine, (decays, x @ params["w"]))[1])

    return loss_fn, {"decay": draw(3, 4), "w": draw(3, 4)}, (draw.inputs(6, 3),)


@entry()
def gradient_inside_the_loss(draw):
    def loss_fn(params, x):
        def energy(x):
            return jnp.sum(jnp.tanh(x @ params["w1"]) @ params["w2"])

        slope = jax.grad(energy)(x)
        return energy(x) + jnp.square(jnp.linalg.norm(slope) - 1)

    return loss_fn, {"w1": draw(3, 5), "w2": draw(5, 1)}, (draw.inputs(3),)


# The margin for the rounding of its Gram form is above 1e-5.
@entry(rtol=5e-5)
def linear_solve_with_a_learned_right_side(draw):
    def loss_fn(w, x):
        matrix = x @ x.T + 2 * jnp.eye(4, dtype=x.dtype)
        return loss_of(jnp.linalg.solve(matrix, x @ w))

    return loss_fn, draw(3, 2), (draw.inputs(4, 3),)
