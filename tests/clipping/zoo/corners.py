"""Corners: other types, outputs beside the loss, primitives without a rule, odd leaves."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.clipping.zoo.entry import cross_entropy, entry, loss_of


@entry()
def sort_and_top_k(draw):
    def loss_fn(w, x):
        hidden = jnp.tanh(x @ w)
        best, _ = jax.lax.top_k(hidden, 2)
        return loss_of(jnp.sort(hidden, axis=0)[1:]) + loss_of(best)

    return loss_fn, draw(3, 5), (draw.inputs(4, 3),)


@entry()
def cumulative_sums_and_products(draw):
    def loss_fn(params, x):
        hidden = jnp.cumsum(x @ params["w"], axis=0) + params["b"][None]
        return loss_of(jnp.cumprod(jnp.cos(hidden), axis=1))

    return loss_fn, {"w": draw(3, 4), "b": draw(4)}, (draw.inputs(5, 3),)


@entry()
def fourier_transform_of_activations(draw):
    def loss_fn(params, x):
        spectrum = jnp.fft.rfft(x @ params["w"], axis=0)
        return loss_of(jnp.abs(spectrum) ** 2 * params["filter"][:, None])

    return loss_fn, {"w": draw(3, 4), "filter": draw(4)}, (draw.inputs(6, 3),)


@entry(falls_back=True)
def complex_weights_from_two_real_ones(draw):
    def loss_fn(params, x):
        w = params["real"] + 1j * params["imaginary"]
        y = (x + 0.5j * x[::-1]) @ w
        return loss_of(jnp.real(y * jnp.exp(0.3j))) + jnp.sum(jnp.abs(y) ** 2)

    return loss_fn, {"real": draw(3, 4), "imaginary": draw(3, 4)}, (draw.inputs(5, 3),)


@entry()
def argmax_of_a_layer(draw):
    def loss_fn(params, x):
        logits = x @ params["w"]
        picked = params["values"][jnp.argmax(logits, axis=-1)]
        return loss_of(jnp.max(logits, axis=-1) * picked)

    return loss_fn, {"w": draw(3, 4), "values": draw(4)}, (draw.inputs(5, 3),)


@entry()
def unused_parameter(draw):
    def loss_fn(params, x):
        return loss_of(x @ params["used"])

    return loss_fn, {"used": draw(3, 4), "unused": draw(2, 2)}, (draw.inputs(5, 3),)


@entry(options={"has_aux": True})
def parameter_used_in_aux_only(draw):
    def loss_fn(params, x):
        hidden = x @ params["w"]
        return loss_of(hidden), {"hidden": hidden, "other": params["aux"] * 2}

    return loss_fn, {"w": draw(3, 4), "aux": draw(2)}, (draw.inputs(5, 3),)


@entry(options={"has_aux": True})
def aux_with_integers_and_nothing(draw):
    def loss_fn(params, x, label):
        logits = x @ params["w"] + params["b"]
        return cross_entropy(logits, label), (jnp.argmax(logits), None, logits > 0)

    return loss_fn, {"w": draw(4, 3), "b": draw(3)}, (draw.inputs(4), draw.tokens(3))


@entry(key=True)
def dropout(draw):
    def loss_fn(params, x, *, key):
        kept = jax.random.bernoulli(key, 0.7, (5, 6))
        return loss_of(jnp.where(kept, jnp.tanh(x @ params["w1"]), 0) @ params["w2"])

    return loss_fn, {"w1": draw(3, 6), "w2": draw(6, 2)}, (draw.inputs(5, 3),)


@entry(key=True)
def dropout_inside_a_scan(draw):
    def loss_fn(w, x, *, key):
        def layer(x, inputs):
            w, kept = inputs
            return jnp.tanh(x @ w) * kept, None

        return loss_of(jax.lax.scan(layer, x, (w, jax.random.bernoulli(key, 0.7, (3, 5, 4))))[0])

    return loss_fn, draw.weights(3, 4, 4), (draw.inputs(5, 4),)


@entry(falls_back=True)
def leaf_without_entries(draw):
    def loss_fn(params, x):
        return loss_of(x @ params["w"] + jnp.sum(params["empty"]))

    return loss_fn, {"w": draw(3, 4), "empty": np.zeros((0, 3), np.float32)}, (draw.inputs(5, 3),)


@entry()
def product_with_an_empty_axis(draw):
    def loss_fn(params, x):
        return loss_of(x @ params["w"]) + jnp.sum(x[:, :0] @ params["empty"])

    return loss_fn, {"w": draw(3, 4), "empty": np.zeros((0, 2), np.float32)}, (draw.inputs(5, 3),)


@entry(falls_back=True)
def scalar_parameters(draw):
    def loss_fn(params, x):
        return jnp.tanh(params["a"] * x) + params["b"] ** 2 * x + params["c"]

    return loss_fn, {"a": draw(), "b": draw(), "c": draw()}, (draw.inputs(),)


@entry()
def loss_that_does_not_depend_on_the_parameters(draw):
    return lambda w, x: jnp.sum(x), draw(3), (draw.inputs(2),)


@entry()
def zero_gradients_for_some_examples(draw):
    def loss_fn(params, x):
        return loss_of(jax.nn.relu(x @ params["w"] - 1) @ params["v"] * 3) - 0.0

    x = draw.inputs(4, 3)
    x[::2] = 0
    return loss_fn, {"w": draw(3, 5), "v": draw(5, 2)}, (x,)


def low_precision(dtype):
    def builder(draw):
        def loss_fn(params, x):
            hidden = jnp.tanh(x.astype(dtype) @ params["w"] + params["b"][None])
            return loss_of((hidden @ params["v"]).astype(jnp.float32))

        params = {"w": draw(6, 5), "b": draw(5), "v": draw(5, 4)}
        params = {name: jnp.asarray(leaf, dtype) for name, leaf in params.items()}
        return loss_fn, params, (draw.inputs(3, 6),)

    return builder


# A cotangent in bfloat16 is right to 2^-9, in float16 to 2^-12, and so is a gradient; the
# strategies round it at different places, three or four times on the way.
@entry(float64=False, rtol=4 * 2**-9)
def bfloat16_parameters(draw):
    return low_precision(jnp.bfloat16)(draw)


@entry(float64=False, rtol=4 * 2**-12)
def float16_parameters(draw):
    return low_precision(jnp.float16)(draw)


@entry(float64=False, rtol=4 * 2**-9)
def parameters_of_three_types(draw):
    def loss_fn(params, x):
        hidden = jnp.tanh(x @ params["float32"]).astype(jnp.bfloat16)
        hidden = jnp.tanh(hidden @ params["bfloat16"]).astype(jnp.float16)
        return loss_of((hidden * params["float16"][None]).astype(jnp.float32))

    params = {
        "float32": draw(3, 4),
        "bfloat16": jnp.asarray(draw(4, 5), jnp.bfloat16),
        "float16": jnp.asarray(draw(5), jnp.float16),
    }
    return loss_fn, params, (draw.inputs(6, 3),)


@entry(float64=False, rtol=4 * 2**-9)
def product_of_bfloat16_accumulated_in_float32(draw):
    def loss_fn(w, x):
        contract = (((1,), (0,)), ((), ()))
        y = jax.lax.dot_general(
            x.astype(jnp.bfloat16), w, contract, preferred_element_type=jnp.float32
        )
        return loss_of(y)

    return loss_fn, jnp.asarray(draw(6, 4), jnp.bfloat16), (draw.inputs(5, 6),)


@entry()
def printing_inside_the_loss(draw):
    def loss_fn(w, x):
        hidden = x @ w
        jax.debug.print("largest {}", jnp.max(hidden))
        return loss_of(hidden)

    return loss_fn, draw(3, 4), (draw.inputs(5, 3),)


@entry()
def callback_on_data(draw):
    def loss_fn(w, x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        signs = jax.pure_callback(np.sign, shape, x, vmap_method="expand_dims")
        return loss_of((x + signs) @ w)

    return loss_fn, draw(3, 4), (draw.inputs(5, 3),)


@entry()
def padded_sequences_masked_inside_the_loss(draw):
    def loss_fn(params, x, length):
        mask = (jnp.arange(6) < length)[:, None]
        hidden = jnp.where(mask, jnp.tanh(x @ params["w"] + params["b"][None]), 0)
        return loss_of(jnp.sum(hidden, axis=0) / jnp.maximum(length, 1))

    return loss_fn, {"w": draw(3, 4), "b": draw(4)}, (draw.inputs(6, 3), draw.tokens(7))


@entry()
def rank_promotion_as_users_write_it(draw):
    def loss_fn(params, x):
        with jax.numpy_rank_promotion("allow"):
            return loss_of(jnp.tanh(x @ params["w"] + params["b"]) * params["scale"])

    return loss_fn, {"w": draw(3, 4), "b": draw(4), "scale": draw(1)}, (draw.inputs(5, 3),)


@entry()
def batch_of_nested_arguments(draw):
    def loss_fn(w, example, extra):
        return loss_of(example["x"] @ w) * extra[0] + (0 if extra[1] is None else 1)

    return loss_fn, draw(3, 4), ({"x": draw.inputs(5, 3)}, [draw.inputs(), None])
