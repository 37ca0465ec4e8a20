"""Lookups of rows: by indexing, take, one-hot products, in range and out of it."""

import jax
import jax.numpy as jnp

from tests.clipping.zoo.entry import cross_entropy, entry, loss_of


def lookup_entry(lookup):
    """A loss with one table of 7 rows, looked up at 10 places that fall outside it too."""

    def builder(draw):
        def loss_fn(table, tokens):
            return loss_of(lookup(table, tokens))

        return loss_fn, draw(7, 3), (draw.tokens(13, 10) - 3,)

    return builder


@entry()
def embedding_by_indexing(draw):
    def loss_fn(table, tokens):
        return loss_of(table[tokens])

    return loss_fn, draw(20, 6), (draw.tokens(20, 5),)


@entry()
def embedding_with_many_repeated_tokens(draw):
    def loss_fn(table, tokens):
        return loss_of(table[tokens])

    return loss_fn, draw(50, 4), (draw.tokens(3, 12),)


@entry()
def embedding_of_one_token(draw):
    def loss_fn(table, token):
        return loss_of(table[token])

    return loss_fn, draw(20, 6), (draw.tokens(20),)


@entry()
def embedding_of_a_grid_of_tokens(draw):
    def loss_fn(table, tokens):
        return loss_of(table[tokens].sum(axis=1))

    return loss_fn, draw(40, 2), (draw.tokens(9, 3, 4),)


@entry()
def embedding_by_indexing_out_of_range(draw):
    return lookup_entry(lambda table, tokens: table[tokens])(draw)


@entry()
def embedding_by_take_clipped(draw):
    return lookup_entry(lambda table, tokens: jnp.take(table, tokens, axis=0, mode="clip"))(draw)


@entry()
def embedding_by_take_wrapped(draw):
    return lookup_entry(lambda table, tokens: jnp.take(table, tokens, axis=0, mode="wrap"))(draw)


@entry()
def embedding_by_take_filled(draw):
    def lookup(table, tokens):
        return jnp.take(table, tokens, axis=0, mode="fill", fill_value=0)

    return lookup_entry(lookup)(draw)


@entry()
def embedding_by_get_with_a_fill_value(draw):
    def lookup(table, tokens):
        return table.at[tokens].get(mode="fill", fill_value=2.0)

    return lookup_entry(lookup)(draw)


@entry()
def embedding_along_the_second_axis(draw):
    def loss_fn(table, tokens):
        return loss_of(jnp.take(table, tokens, axis=1))

    return loss_fn, draw(3, 9), (draw.tokens(9, 5),)


@entry()
def embedding_by_one_hot_product(draw):
    def loss_fn(table, tokens):
        return loss_of(jax.nn.one_hot(tokens, 9, dtype=table.dtype) @ table)

    return loss_fn, draw(9, 4), (draw.tokens(9, 5),)


@entry()
def embedding_bag_classifier(draw):
    def loss_fn(params, tokens, label):
        hidden = jnp.mean(params["table"][tokens], axis=0)
        return cross_entropy(jnp.tanh(hidden) @ params["w"] + params["b"], label)

    params = {"table": draw(300, 5), "w": draw(5, 3), "b": draw(3)}
    return loss_fn, params, (draw.tokens(300, 7), draw.tokens(3))


@entry()
def tied_embeddings_of_input_and_output(draw):
    def loss_fn(params, tokens, targets):
        hidden = jnp.tanh(params["table"][tokens] @ params["w"])
        logits = hidden @ params["table"].T
        return jnp.sum(jax.vmap(cross_entropy)(logits, targets))

    params = {"table": draw(11, 4), "w": draw(4, 4)}
    return loss_fn, params, (draw.tokens(11, 5), draw.tokens(11, 5))


@entry()
def tied_embeddings_with_a_large_vocabulary(draw):
    def loss_fn(table, tokens, targets):
        logits = jnp.einsum("td,vd->tv", jnp.tanh(table[tokens]), table)
        return jnp.sum(jax.vmap(cross_entropy)(logits, targets))

    return loss_fn, draw(150, 6), (draw.tokens(150, 3), draw.tokens(150, 3))


@entry()
def one_table_looked_up_twice(draw):
    def loss_fn(table, left, right):
        return loss_of(table[left] * 2 + jnp.tanh(table[right]))

    return loss_fn, draw(12, 4), (draw.tokens(12, 4), draw.tokens(12, 4))


@entry()
def token_position_and_segment_embeddings(draw):
    def loss_fn(params, tokens, segments):
        hidden = params["token"][tokens] + params["position"][: len(tokens)]
        return loss_of(jnp.tanh(hidden + params["segment"][segments]))

    params = {"token": draw(15, 4), "position": draw(8, 4), "segment": draw(2, 4)}
    return loss_fn, params, (draw.tokens(15, 5), draw.tokens(2, 5))


@entry()
def position_embeddings_broadcast_over_views(draw):
    def loss_fn(params, views):
        hidden = views + jnp.broadcast_to(params["position"], views.shape)
        return loss_of(jnp.tanh(hidden) @ params["w"])

    return loss_fn, {"position": draw(5, 4), "w": draw(4, 3)}, (draw.inputs(3, 5, 4),)


@entry()
def relative_position_bias(draw):
    distances = jnp.arange(5)[:, None] - jnp.arange(5)[None] + 4

    def loss_fn(params, x):
        scores = x @ x.T + params["bias"][distances]
        return loss_of(jax.nn.softmax(scores) @ x @ params["w"])

    return loss_fn, {"bias": draw(9), "w": draw(3, 3)}, (draw.inputs(5, 3),)


@entry(falls_back=True)
def rows_picked_by_a_dynamic_slice(draw):
    def loss_fn(params, start, x):
        rows = jax.lax.dynamic_slice_in_dim(params["table"], start, 3)
        return loss_of(rows * params["scale"] + x)

    return loss_fn, {"table": draw(9, 4), "scale": draw()}, (draw.tokens(9), draw.inputs(3, 4))


@entry(falls_back=True)
def entries_picked_by_two_indices(draw):
    def loss_fn(table, rows, columns):
        return loss_of(table[rows, columns])

    return loss_fn, draw(5, 6, 2), (draw.tokens(5, 7), draw.tokens(6, 7))


@entry(falls_back=True)
def entries_picked_along_an_axis(draw):
    def loss_fn(table, places):
        return loss_of(jnp.take_along_axis(table, places, axis=1))

    return loss_fn, draw(4, 6), (draw.tokens(6, 4, 3),)


@entry(falls_back=True)
def parameter_that_data_is_scattered_into(draw):
    def loss_fn(memory, places, x):
        return loss_of(memory.at[places].multiply(x))

    return loss_fn, draw(6, 3), (draw.tokens(6, 4), draw.inputs(4, 3))
