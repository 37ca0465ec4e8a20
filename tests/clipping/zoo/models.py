"""Layers and models as libraries write them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tests.clipping.zoo.control_flow import dense, dense_params
from tests.clipping.zoo.convolution import LAYOUT_2D, conv
from tests.clipping.zoo.entry import cross_entropy, entry, loss_of


def standardise(x, axis, eps=1e-5):
    centred = x - jnp.mean(x, axis, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis, keepdims=True) + eps)


def layer_norm(params, x):
    return standardise(x, -1) * params["scale"][None] + params["bias"][None]


def norm_params(draw, features):
    return {"scale": 1 + draw(features, scale=0.3), "bias": draw(features)}


@entry()
def bias_and_scale_alone(draw):
    def loss_fn(params, x):
        return loss_of(x * params["scale"][None] + params["bias"][None])

    return loss_fn, {"scale": draw(4), "bias": draw(4)}, (draw.inputs(6, 4),)


@entry()
def layer_norm_between_dense_layers(draw):
    def loss_fn(params, x):
        return loss_of(layer_norm(params["norm"], dense(params["dense"], x)))

    params = {"dense": dense_params(draw, 4, 6), "norm": norm_params(draw, 6)}
    return loss_fn, params, (draw.inputs(5, 4),)


@entry()
def root_mean_square_norm_with_a_shifted_scale(draw):
    def loss_fn(params, x):
        x = x @ params["w"]
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
        return loss_of(x * (1 + params["scale"])[None])

    return loss_fn, {"w": draw(4, 6), "scale": draw(6)}, (draw.inputs(5, 4),)


@entry()
def residual_block_with_group_norm(draw):
    def group_norm(params, x):
        groups = x.reshape(*x.shape[:2], 2, -1)
        x = standardise(groups, (0, 1, 3)).reshape(x.shape)
        return x * params["scale"][None, None] + params["bias"][None, None]

    def loss_fn(params, x, label):
        x = conv(x, params["stem"], LAYOUT_2D)
        hidden = conv(jax.nn.silu(group_norm(params["norm1"], x)), params["k1"], LAYOUT_2D)
        hidden = conv(jax.nn.silu(group_norm(params["norm2"], hidden)), params["k2"], LAYOUT_2D)
        return cross_entropy(jnp.mean(x + hidden, (0, 1)) @ params["head"], label)

    params = {
        "stem": draw.weights(3, 3, 2, 4),
        "norm1": norm_params(draw, 4),
        "k1": draw.weights(3, 3, 4, 4),
        "norm2": norm_params(draw, 4),
        "k2": draw.weights(3, 3, 4, 4),
        "head": draw(4, 3),
    }
    return loss_fn, params, (draw.inputs(4, 4, 2), draw.tokens(3))


@entry()
def convolutional_network_with_pooling(draw):
    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2, 1), (2, 2, 1), "VALID")

    def loss_fn(params, x, label):
        x = conv(x, params["k1"], LAYOUT_2D, window_strides=(2, 2))
        x = pool(jax.nn.relu(x + params["b1"][None, None]))
        x = conv(x, params["k2"], LAYOUT_2D, padding="VALID")
        return cross_entropy(x.reshape(-1) @ params["w"] + params["b"], label)

    params = {
        "k1": draw.weights(4, 4, 1, 4),
        "b1": draw(4),
        "k2": draw.weights(2, 2, 4, 5),
        "w": draw.weights(20, 3),
        "b": draw(3),
    }
    return loss_fn, params, (draw.inputs(12, 12, 1), draw.tokens(3))


def block_params(draw, width):
    return {
        "norm1": norm_params(draw, width),
        "qkv": dense_params(draw, width, 3 * width),
        "out": dense_params(draw, width, width),
        "norm2": norm_params(draw, width),
        "up": dense_params(draw, width, 2 * width),
        "down": dense_params(draw, 2 * width, width),
    }


def affine(params, x):
    return x @ params["w"] + params["b"][None]


def attention(params, x, heads=2):
    qkv = affine(params["qkv"], x).reshape(len(x), 3, heads, -1)
    q, k, v = (qkv[:, i] for i in range(3))
    scores = jnp.einsum("thk,shk->hts", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[1:], bool))[None]
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return affine(params["out"], jnp.einsum("hts,shk->thk", weights, v).reshape(x.shape))


def block(params, x):
    x = x + attention(params, layer_norm(params["norm1"], x))
    hidden = jax.nn.gelu(affine(params["up"], layer_norm(params["norm2"], x)))
    return x + affine(params["down"], hidden)


def language_model(apply_blocks):
    def loss_fn(params, tokens):
        x = params["table"][tokens[:-1]] + params["position"]
        x = layer_norm(params["norm"], apply_blocks(params["blocks"], x))
        return jnp.mean(jax.vmap(cross_entropy)(x @ params["table"].T, tokens[1:]))

    return loss_fn


def language_model_params(draw, length, width, vocabulary, blocks):
    return {
        "table": draw(vocabulary, width, scale=0.5),
        "position": draw(length, width),
        "norm": norm_params(draw, width),
        "blocks": blocks,
    }


@entry()
def transformer_with_tied_embeddings(draw):
    def apply_blocks(blocks, x):
        for params in blocks:
            x = block(params, x)
        return x

    blocks = [block_params(draw, 8) for _ in range(2)]
    params = language_model_params(draw, 6, 8, 13, blocks)
    return language_model(apply_blocks), params, (draw.tokens(13, 7),)


@entry()
def transformer_with_scanned_and_checkpointed_blocks(draw):
    def apply_blocks(blocks, x):
        step = jax.checkpoint(lambda x, params: (block(params, x), None))
        return jax.lax.scan(step, x, blocks)[0]

    both = [block_params(draw, 8) for _ in range(2)]
    blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *both)
    params = language_model_params(draw, 6, 8, 13, blocks)
    return language_model(apply_blocks), params, (draw.tokens(13, 7),)


class Layer(NamedTuple):
    w: jax.Array
    b: jax.Array | None = None


@entry()
def parameters_in_tuples_lists_and_nothing(draw):
    def loss_fn(params, x):
        layers, (scale, nothing) = params
        assert nothing is None
        for layer in layers:
            x = jnp.tanh(x @ layer.w + (0 if layer.b is None else layer.b[None]))
        return loss_of(x * scale)

    layers = [Layer(draw(3, 4), draw(4)), Layer(draw(4, 2))]
    return loss_fn, (layers, (draw(), None)), (draw.inputs(5, 3),)


@entry()
def gated_units_with_learned_slopes(draw):
    def loss_fn(params, x):
        gate, value = jnp.split(x @ params["w"], 2, axis=-1)
        hidden = jax.nn.sigmoid(gate) * value
        return loss_of(jnp.where(hidden > 0, hidden, params["slope"] * hidden) @ params["out"])

    params = {"w": draw(3, 8), "slope": draw(), "out": draw(4, 2)}
    return loss_fn, params, (draw.inputs(5, 3),)


@entry()
def contrastive_loss_of_two_views(draw):
    def loss_fn(params, left, right):
        a, b = (jnp.tanh(x @ params["w1"]) @ params["w2"] for x in (left, right))
        return cross_entropy(a @ b.T @ jnp.ones(4, a.dtype), 0) + loss_of(a - b)

    params = {"w1": draw(3, 5), "w2": draw(5, 4)}
    return loss_fn, params, (draw.inputs(4, 3), draw.inputs(4, 3))


@entry()
def group_of_records_as_one_example(draw):
    # CASES 20: the loss of an example is the mean over its records.
    def loss_fn(params, records, labels):
        def one(x, label):
            return cross_entropy(jnp.tanh(x @ params["w1"]) @ params["w2"] + params["b"], label)

        return jnp.mean(jax.vmap(one)(records, labels))

    params = {"w1": draw(4, 5), "w2": draw(5, 3), "b": draw(3)}
    return loss_fn, params, (draw.inputs(6, 4), draw.tokens(3, 6))
