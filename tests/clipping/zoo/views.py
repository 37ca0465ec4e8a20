"""One parameter in several shapes, places and uses; functions of a parameter."""

import jax
import jax.numpy as jnp

from tests.clipping.zoo.entry import cross_entropy, entry, loss_of


@entry()
def scalar_used_twice(draw):
    # CASES 17: the norm at x = 3 is 6.
    return lambda w, x: w * x + w * x, draw(), (3 * jnp.ones(8),)


@entry()
def matrix_used_in_two_layers(draw):
    def loss_fn(w, x):
        return loss_of(jnp.tanh(x @ w) @ w)

    return loss_fn, draw(4, 4), (draw.inputs(5, 4),)


@entry()
def wide_matrix_used_in_two_layers(draw):
    def loss_fn(w, x):
        return loss_of(jnp.tanh(x @ w) @ w)

    return loss_fn, draw.weights(30, 30), (draw.inputs(2, 30),)


@entry()
def matrix_and_its_transpose(draw):
    def loss_fn(w, x):
        return loss_of(jnp.tanh(x @ w) @ w.T)

    return loss_fn, draw(4, 7), (draw.inputs(3, 4),)


@entry(falls_back=True)
def kernel_used_in_two_convolutions_and_a_product(draw):
    def loss_fn(kernel, x):
        hidden = x
        for _ in range(2):
            hidden = jnp.tanh(
                jax.lax.conv_general_dilated(
                    hidden[None], kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
                )[0]
            )
        return loss_of(hidden) + loss_of(x @ kernel[0])

    return loss_fn, draw.weights(3, 2, 2), (draw.inputs(6, 2),)


@entry()
def queries_keys_and_values_sliced_from_one_matrix(draw):
    def loss_fn(w, x):
        q, k, v = (x @ w[:, i * 4 : (i + 1) * 4] for i in range(3))
        return loss_of(jax.nn.softmax(q @ k.T) @ v)

    return loss_fn, draw.weights(5, 12), (draw.inputs(6, 5),)


@entry()
def queries_keys_and_values_split_from_one_matrix(draw):
    def loss_fn(w, x):
        q, k, v = (x @ part for part in jnp.split(w, 3, axis=1))
        return loss_of(jax.nn.softmax(q @ k.T) @ v)

    return loss_fn, draw.weights(5, 12), (draw.inputs(6, 5),)


@entry(falls_back=True)
def overlapping_slices(draw):
    def loss_fn(w, x):
        return loss_of(jnp.tanh(x @ w[:, :5]) + x @ w[:, 3:8])

    return loss_fn, draw(3, 8), (draw.inputs(4, 3),)


@entry(falls_back=True)
def strided_and_reversed_slices(draw):
    def loss_fn(w, x):
        return loss_of(jnp.tanh(x @ w[:, ::2]) + x @ w[::-1, 1::2])

    return loss_fn, draw(3, 8), (draw.inputs(4, 3),)


@entry()
def part_of_a_matrix_never_used(draw):
    def loss_fn(w, x):
        return loss_of(x @ w[:3])

    return loss_fn, draw(6, 4), (draw.inputs(5, 3),)


@entry()
def reshaped_and_transposed_weights(draw):
    def loss_fn(w, x):
        folded = w.reshape(4, 3, 2).transpose(1, 0, 2).reshape(3, 8)
        return loss_of(x @ folded)

    return loss_fn, draw(24), (draw.inputs(5, 3),)


@entry(falls_back=True)
def broadcast_weights(draw):
    def loss_fn(row, x):
        return loss_of(x @ jnp.broadcast_to(row[None], (4, 3)))

    return loss_fn, draw(3), (draw.inputs(5, 4),)


@entry()
def weights_with_unit_axes_added_and_removed(draw):
    def loss_fn(w, x):
        return loss_of(x @ jnp.expand_dims(w, (0, 3))[0, :, :, 0, 0])

    return loss_fn, draw(3, 4, 1), (draw.inputs(5, 3),)


@entry(falls_back=True)
def concatenated_weights(draw):
    def loss_fn(params, x):
        return loss_of(x @ jnp.concatenate([params["a"], params["b"]], axis=1))

    return loss_fn, {"a": draw(3, 4), "b": draw(3, 2)}, (draw.inputs(5, 3),)


@entry(falls_back=True)
def stacked_weights(draw):
    def loss_fn(params, x):
        return loss_of(jnp.einsum("htd,hdp->htp", x, jnp.stack(params)))

    return loss_fn, [draw(3, 4), draw(3, 4)], (draw.inputs(2, 5, 3),)


@entry()
def stacked_parameters_indexed_in_a_python_loop(draw):
    def loss_fn(params, x):
        for i in range(3):
            x = jnp.tanh(x @ params["w"][i] + params["b"][i][None])
        return loss_of(x)

    return loss_fn, {"w": draw.weights(3, 4, 4), "b": draw(3, 4)}, (draw.inputs(5, 4),)


# The margin for the rounding of its Gram form is above 1e-5.
@entry(rtol=2e-5)
def weights_scaled_by_a_constant(draw):
    def loss_fn(params, x):
        return loss_of(jnp.tanh(x @ (0.5 * params["w"])) @ (params["v"] / 3))

    return loss_fn, {"w": draw(3, 4), "v": draw(4, 2)}, (draw.inputs(5, 3),)


@entry()
def negated_weights(draw):
    def loss_fn(w, x):
        return loss_of(x @ -w)

    return loss_fn, draw(3, 4), (draw.inputs(5, 3),)


@entry(falls_back=True)
def masked_weights(draw):
    mask = draw(4, 4) > 0

    def loss_fn(w, x):
        return loss_of(jnp.tanh(x @ jnp.where(mask, w, 0)) @ jnp.tril(w))

    return loss_fn, draw(4, 4), (draw.inputs(5, 4),)


@entry(falls_back=True)
def symmetric_weights(draw):
    def loss_fn(w, x):
        return loss_of(x @ (w + w.T))

    return loss_fn, draw(4, 4), (draw.inputs(3, 4),)


@entry(falls_back=True)
def weight_normalisation(draw):
    def loss_fn(params, x):
        direction = params["v"] / jnp.linalg.norm(params["v"], axis=0, keepdims=True)
        return loss_of(jnp.tanh(x @ (direction * params["g"][None]) + params["b"][None]))

    return loss_fn, {"v": draw(4, 3), "g": draw(3), "b": draw(3)}, (draw.inputs(5, 4),)


@entry(falls_back=True)
def spectral_normalisation(draw):
    start = draw(5)

    def loss_fn(params, x):
        u, w = start, params["w"]
        for _ in range(2):
            v = u @ w
            v = v / jnp.linalg.norm(v)
            u = w @ v
            u = u / jnp.linalg.norm(u)
        sigma = jax.lax.stop_gradient(u) @ w @ jax.lax.stop_gradient(v)
        return loss_of(x @ (w / sigma))

    return loss_fn, {"w": draw(5, 3)}, (draw.inputs(4, 5),)


@entry(falls_back=True)
def squared_norm_of_the_weights_added_to_the_loss(draw):
    def loss_fn(params, x, label):
        penalty = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))
        return cross_entropy(x @ params["w"] + params["b"], label) + 0.1 * penalty

    return loss_fn, {"w": draw(4, 3), "b": draw(3)}, (draw.inputs(4), draw.tokens(3))


@entry(falls_back=True)
def loss_of_the_parameters_alone(draw):
    return lambda w, x: jnp.sum(jnp.square(w)), draw(3, 2), (draw.inputs(1),)


@entry(falls_back=True)
def loss_half_of_whose_terms_ignore_the_example(draw):
    def loss_fn(params, x):
        return loss_of(x @ params["w"]) + loss_of(params["fixed"] @ params["w"])

    return loss_fn, {"w": draw(4, 3), "fixed": draw(2, 4)}, (draw.inputs(5, 4),)


@entry()
def constant_input_to_a_layer(draw):
    constant = draw(3, 4)

    def loss_fn(params, x):
        generated = jnp.tanh(constant @ params["w"])
        return loss_of(x @ generated.T @ params["v"])

    return loss_fn, {"w": draw(4, 5), "v": draw(3, 2)}, (draw.inputs(6, 5),)


@entry()
def stopped_gradient_of_a_parameter(draw):
    def loss_fn(params, x):
        target = x @ jax.lax.stop_gradient(params["slow"])
        return jnp.sum(jnp.square(jnp.tanh(x @ params["fast"]) - target))

    return loss_fn, {"fast": draw(3, 4), "slow": draw(3, 4)}, (draw.inputs(5, 3),)


@entry()
def parameter_stopped_in_one_use_and_trained_in_the_other(draw):
    def loss_fn(w, x):
        return loss_of(jnp.tanh(x @ w) @ jax.lax.stop_gradient(w).T)

    return loss_fn, draw(3, 4), (draw.inputs(5, 3),)


@entry()
def weights_made_by_a_hypernetwork(draw):
    def loss_fn(params, x, context):
        w = (context @ params["hyper"]).reshape(3, 4) + params["base"]
        return loss_of(x @ w)

    params = {"hyper": draw(2, 12), "base": draw(3, 4)}
    return loss_fn, params, (draw.inputs(5, 3), draw.inputs(2))


@entry(float64=False, rtol=1e-2)
def weights_cast_to_bfloat16(draw):
    def loss_fn(params, x):
        hidden = jnp.tanh(x.astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16))
        return loss_of(hidden.astype(jnp.float32) @ params["v"])

    return loss_fn, {"w": draw(6, 5), "v": draw(5, 4)}, (draw.inputs(3, 6),)


@entry(falls_back=True)
def padded_weights(draw):
    def loss_fn(w, x):
        return loss_of(x @ jnp.pad(w, ((0, 1), (2, 0))))

    return loss_fn, draw(3, 4), (draw.inputs(5, 4),)
