"""Matrix products: operand orders, batched axes, many axes, few and many positions."""

import itertools

import jax
import jax.numpy as jnp

from tests.clipping.zoo.entry import cross_entropy, entry, loss_of


@entry()
def logistic_regression(draw):
    def loss_fn(params, x, is_positive):
        logit = jnp.vdot(params["w"], x) + params["b"]
        return jax.nn.softplus(jnp.where(is_positive, -logit, logit))

    params = {"w": draw(5), "b": draw()}
    return loss_fn, params, (draw.inputs(5), draw.tokens(2) > 0)


@entry()
def mlp(draw):
    def loss_fn(params, x, label):
        for layer in params[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return cross_entropy(x @ params[-1]["w"] + params[-1]["b"], label)

    sizes = [12, 9, 7, 3]
    shapes = itertools.pairwise(sizes)
    params = [{"w": draw.weights(*shape), "b": draw(shape[1])} for shape in shapes]
    return loss_fn, params, (draw.inputs(12), draw.tokens(3))


@entry()
def many_positions_through_a_narrow_matrix(draw):
    def loss_fn(w, x):
        return loss_of(x @ w)

    return loss_fn, draw.weights(3, 4), (draw.inputs(40, 3),)


@entry()
def few_positions_through_a_wide_matrix(draw):
    def loss_fn(w, x):
        return loss_of(x @ w)

    return loss_fn, draw.weights(40, 50), (draw.inputs(3, 40),)


@entry()
def two_wide_layers_with_few_positions(draw):
    def loss_fn(params, x):
        hidden = jnp.tanh(x @ params["w1"] + params["b1"][None])
        return loss_of(hidden @ params["w2"])

    params = {"w1": draw.weights(32, 48), "b1": draw(48), "w2": draw.weights(48, 40)}
    return loss_fn, params, (draw.inputs(4, 32),)


@entry()
def weights_on_the_left(draw):
    def loss_fn(params, x):
        return loss_of(params["out"] @ jnp.tanh(params["in"] @ x))

    return loss_fn, {"in": draw(7, 3), "out": draw(2, 7)}, (draw.inputs(3, 5),)


@entry()
def matrix_and_vector_in_both_orders(draw):
    def loss_fn(params, x):
        return loss_of(params["right"] @ jnp.tanh(x @ params["left"]))

    return loss_fn, {"left": draw(4, 6), "right": draw(3, 6)}, (draw.inputs(4),)


@entry()
def contraction_of_two_axes_to_two_axes(draw):
    def loss_fn(w, x):
        return loss_of(jnp.einsum("stab,abcd->stcd", x, w))

    return loss_fn, draw(2, 3, 4, 2), (draw.inputs(3, 2, 2, 3),)


@entry()
def contraction_with_scattered_axes_and_weights_first(draw):
    def loss_fn(w, x):
        return loss_of(jnp.einsum("acbd,sdta->bsct", w, x))

    return loss_fn, draw(2, 3, 4, 5), (draw.inputs(3, 5, 2, 2),)


@entry()
def batched_product_with_the_batch_axis_in_the_middle(draw):
    def loss_fn(w, x):
        return loss_of(jnp.einsum("thi,ihj->thj", x, w))

    return loss_fn, draw(4, 3, 2), (draw.inputs(5, 3, 4),)


@entry()
def batched_product_of_few_positions_with_wide_matrices(draw):
    def loss_fn(w, x):
        return loss_of(jnp.einsum("hij,hti->htj", w, x))

    return loss_fn, draw.weights(2, 24, 30), (draw.inputs(2, 3, 24),)


@entry()
def product_without_free_axes_of_the_weights(draw):
    def loss_fn(w, x):
        return loss_of(jnp.einsum("td,std->st", w, x))

    return loss_fn, draw(4, 3), (draw.inputs(5, 4, 3),)


@entry()
def product_without_contraction(draw):
    def loss_fn(w, x):
        return loss_of(jnp.einsum("p,t->tp", w, x))

    return loss_fn, draw(6), (draw.inputs(4),)


@entry()
def product_with_batch_axes_only(draw):
    def loss_fn(w, x):
        dimensions = (((), ()), ((0, 1), (1, 0)))
        return loss_of(jax.lax.dot_general(w, x, dimensions))

    return loss_fn, draw(4, 3), (draw.inputs(3, 4),)


@entry()
def inner_product_with_the_whole_weight(draw):
    def loss_fn(w, x):
        return jnp.tanh(jnp.einsum("abc,bca->", w, x))

    return loss_fn, draw(2, 3, 2), (draw.inputs(3, 2, 2),)


@entry()
def bilinear_form(draw):
    def loss_fn(w, x, y):
        return loss_of(jnp.einsum("i,ijk,k->j", x, w, y))

    return loss_fn, draw(3, 4, 2), (draw.inputs(3), draw.inputs(2))


@entry()
def weights_stacked_and_vmapped(draw):
    def loss_fn(params, x):
        dense = jax.vmap(lambda w, b, row: jnp.tanh(row @ w + b[None]))
        return loss_of(dense(params["w"], params["b"], x))

    return loss_fn, {"w": draw(3, 4, 5), "b": draw(3, 5)}, (draw.inputs(3, 2, 4),)


@entry()
def one_input_through_an_ensemble(draw):
    def loss_fn(w, x):
        return loss_of(jax.vmap(lambda one: x @ one)(w))

    return loss_fn, draw(3, 4, 5), (draw.inputs(6, 4),)


@entry()
def dense_layer_vmapped_over_positions(draw):
    def loss_fn(params, x):
        return loss_of(jax.vmap(lambda row: jnp.tanh(row @ params["w"] + params["b"]))(x))

    return loss_fn, {"w": draw(4, 5), "b": draw(5)}, (draw.inputs(6, 4),)


@entry()
def multi_head_attention(draw):
    def loss_fn(params, x):
        q, k, v = (jnp.einsum("td,dhk->htk", x, params[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("htk,hsk->hts", q, k) / 2)
        return loss_of(jnp.einsum("hts,hsk,hkd->td", weights, v, params["o"]))

    params = {name: draw.weights(8, 2, 4) for name in "qkv"}
    return loss_fn, params | {"o": draw.weights(2, 4, 8)}, (draw.inputs(5, 8),)


@entry()
def mixture_of_experts_with_soft_gates(draw):
    def loss_fn(params, x):
        gates = jax.nn.softmax(x @ params["gate"])
        experts = jnp.einsum("td,edp->tep", x, params["experts"])
        return loss_of(jnp.einsum("te,tep->tp", gates, jnp.tanh(experts)))

    return loss_fn, {"gate": draw(4, 3), "experts": draw(3, 4, 5)}, (draw.inputs(6, 4),)


@entry()
def mixture_of_experts_with_one_expert_a_token(draw):
    def loss_fn(params, x):
        logits = x @ params["gate"]
        chosen = jnp.argmax(logits, axis=-1)
        weight = jnp.take_along_axis(jax.nn.softmax(logits), chosen[:, None], axis=-1)
        outputs = jnp.einsum("td,tdp->tp", x, params["experts"][chosen])
        return loss_of(weight * jnp.tanh(outputs))

    return loss_fn, {"gate": draw(4, 3), "experts": draw(3, 4, 5)}, (draw.inputs(6, 4),)


@entry()
def low_rank_adapters_beside_frozen_weights(draw):
    frozen = draw.weights(6, 6)

    def loss_fn(adapter, x):
        hidden = jnp.tanh(x @ frozen + 2 * (x @ adapter["a"] @ adapter["b"]))
        return loss_of(hidden @ frozen.T)

    return loss_fn, {"a": draw(6, 2), "b": draw(2, 6)}, (draw.inputs(5, 6),)


@entry(falls_back=True)
def low_rank_adapters_merged_into_frozen_weights(draw):
    frozen = draw.weights(6, 6)

    def loss_fn(adapter, x):
        return loss_of(jnp.tanh(x @ (frozen + adapter["a"] @ adapter["b"])))

    return loss_fn, {"a": draw(6, 2), "b": draw(2, 6)}, (draw.inputs(5, 6),)


@entry(options={"frozen_argnums": 1})
def frozen_argument_between_parameters_and_batch(draw):
    base = {"w": draw.weights(6, 6), "table": draw.tokens(3)}

    def loss_fn(adapter, base, x):
        hidden = jnp.tanh(x @ base["w"] + x @ adapter["a"] @ adapter["b"])
        return loss_of(hidden * base["table"][0])

    return loss_fn, {"a": draw(6, 2), "b": draw(2, 6)}, (base, draw.inputs(5, 6))


@entry(falls_back=True)
def product_of_two_parameters(draw):
    def loss_fn(params, x):
        return loss_of(x @ (params["a"] @ params["b"]))

    return loss_fn, {"a": draw(4, 3), "b": draw(3, 5)}, (draw.inputs(3, 4),)
