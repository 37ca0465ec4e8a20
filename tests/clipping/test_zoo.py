"""Every strategy gives the sum that per-example gradients give, on a zoo of losses."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from tests.clipping.zoo import oracle
from tests.clipping.zoo.catalogue import ENTRIES, build
from tests.clipping.zoo.compiling import compiled
from tests.clipping.zoo.entry import BATCH

# One entry of each kind, for the combinations that take a compilation each.
KINDS = [
    "mlp",
    "two_wide_layers_with_few_positions",
    "convolution_2d_depthwise_and_pointwise",
    "tied_embeddings_of_input_and_output",
    "weight_normalisation",
    "transformer_with_scanned_and_checkpointed_blocks",
    "lstm_over_embedded_tokens",
    "condition_inside_a_scan",
]
# A threshold that clips nobody, of the type of the others, so that one program serves all.
WIDE = np.float32(1e6)
NOBODY = np.zeros(BATCH, bool)
SOME = np.arange(BATCH) % 3 == 1
ENTRY = pytest.mark.parametrize("name", ENTRIES)
KIND = pytest.mark.parametrize("name", KINDS)


@contextlib.contextmanager
def float64():
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        yield


def widened(tree):
    return jax.tree.map(
        lambda leaf: leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf, tree
    )


def clipping(name, strategy="auto", norm="l2_clip_norm", **options):
    """A function of threshold, padding and batch that returns the sum and each norm."""
    entry, problem = ENTRIES[name], build(name)
    options |= entry.options or {}

    def run(threshold, is_padding, params, *batch):
        grad_fn = jaxdp.clipped_grad(
            problem.loss_fn,
            **{norm: threshold},
            strategy=strategy,
            return_per_example=True,
            **options,
        )
        clipped, *_, per_example = grad_fn(
            params, *batch, is_padding=is_padding, **oracle.keywords(entry)
        )
        return clipped.value, per_example.norm

    return run, problem


def middle(norms):
    """A threshold that clips some examples and leaves others."""
    return np.float32(max(np.median(norms), 1e-3))


def assert_close(actual, expected, rtol):
    """Close in each leaf, relative to its norm, or to a tenth of the whole if that is more.

    A leaf far smaller than the others may be the small difference of large numbers (a bias
    before a softmax has no gradient at all), which rounding alone decides.
    """
    actual, expected = (
        jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree) for tree in (actual, expected)
    )
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    whole = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(expected)))

    def check(path, a, e):
        error, scale = np.linalg.norm(a - e), max(np.linalg.norm(e), 0.1 * whole)
        assert error <= rtol * scale, f"{jax.tree_util.keystr(path)}: {error / scale:.2e}"

    jax.tree_util.tree_map_with_path(check, actual, expected)


def assert_agrees_with_the_reference(name, strategy="auto", **options):
    """Without clipping, with some examples clipped, and with some examples padding."""
    run, problem = clipping(name, strategy, **options)
    reference, _ = clipping(name, "per_example", **options)
    run, reference = compiled(run), compiled(reference)
    arguments = problem.params, *problem.batch
    threshold = middle(reference(WIDE, NOBODY, *arguments)[1])
    for case in [(WIDE, NOBODY), (threshold, NOBODY), (threshold, SOME)]:
        sums, norms = run(*case, *arguments)
        expected_sums, expected_norms = reference(*case, *arguments)
        assert_close(sums, expected_sums, ENTRIES[name].rtol)
        assert_close(norms, expected_norms, ENTRIES[name].rtol)


@ENTRY
def test_the_sum_is_that_of_the_reference(name):
    assert_agrees_with_the_reference(name)


@pytest.mark.parametrize(
    "name",
    [
        # The oldest JAX has the reference of every entry, and the oracle of one of each kind.
        pytest.param(name, marks=() if name in KINDS else pytest.mark.newest_only)
        for name, entry in ENTRIES.items()
        if entry.float64
    ],
)
def test_the_sum_is_that_of_an_independent_oracle_in_float64(name):
    with float64():
        run, problem = clipping(name)
        problem = problem._replace(params=widened(problem.params), batch=widened(problem.batch))
        run = compiled(run)
        gradients = oracle.per_example_gradients(ENTRIES[name], problem)
        total, norms = run(1e9, NOBODY, problem.params, *problem.batch)
        assert_close(total, oracle.weighted_sum(gradients, np.ones(BATCH)), 1e-12)
        assert_close(norms, oracle.norms(gradients), 1e-12)
        threshold = float(middle(oracle.norms(gradients)))
        clipped, _ = run(threshold, SOME, problem.params, *problem.batch)
        # Where an example is clipped, up to 3e-5 of its contribution may be held back.
        weights = oracle.weights(gradients, threshold) * ~SOME
        assert_close(clipped, oracle.weighted_sum(gradients, weights), 3e-5)


@ENTRY
def test_bookkeeping_refuses_where_it_would_fall_back_and_only_there(name):
    run, problem = clipping(name, "bookkeeping")

    def trace():
        jax.eval_shape(run, 1.0, NOBODY, problem.params, *problem.batch)

    if ENTRIES[name].falls_back:
        with pytest.raises(ValueError, match="bookkeeping"):
            trace()
    else:
        trace()


@KIND
def test_bookkeeping_gives_the_sum_of_the_reference(name):
    if not ENTRIES[name].falls_back:
        assert_agrees_with_the_reference(name, "bookkeeping")


@pytest.mark.newest_only
@pytest.mark.parametrize(
    "options",
    [
        {"microbatch_size": 3},
        {"microbatch_size": 4, "method": "automatic"},
        {"norm": "l1_clip_norm"},
        {"method": "automatic"},
    ],
    ids=str,
)
@KIND
def test_options_give_the_sum_of_the_reference(name, options):
    assert_agrees_with_the_reference(name, **options)


@pytest.mark.newest_only
@KIND
def test_layers_clipped_by_themselves_give_the_sum_of_the_reference(name):
    _, problem = clipping(name)
    leaves, treedef = jax.tree.flatten(problem.params)
    thresholds = treedef.unflatten([np.float32(0.1 + 0.3 * i) for i in range(len(leaves))])
    results = []
    for strategy in ("auto", "per_example"):
        run, _ = clipping(name, strategy)
        results.append(compiled(run)(thresholds, SOME, problem.params, *problem.batch))
    assert_close(*(sums for sums, _ in results), ENTRIES[name].rtol)
    assert_close(*(norms for _, norms in results), ENTRIES[name].rtol)


@pytest.mark.newest_only
@KIND
def test_a_scan_over_steps_gives_the_sums_of_single_steps(name):
    run, problem = clipping(name)
    params = jax.tree.map(jnp.asarray, problem.params)

    def step(params, threshold):
        sums, norms = run(threshold, NOBODY, params, *problem.batch)
        moved = jax.tree.map(lambda leaf, s: leaf - 0.01 * s.astype(leaf.dtype), params, sums)
        return moved, (sums, norms)

    thresholds = jnp.float32([1e6, 0.5, 0.1])
    _, scanned = compiled(lambda params: jax.lax.scan(step, params, thresholds))(params)
    single = compiled(step)
    for i, threshold in enumerate(thresholds):
        params, expected = single(params, threshold)
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], scanned), expected, 1e-5)


@pytest.mark.newest_only
@KIND
def test_a_batch_spread_over_eight_devices_gives_the_same_sum(name):
    run, problem = clipping(name)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.device_put((SOME, *problem.batch), split)
    assert len(placed[0].sharding.device_set) == BATCH
    params = jax.device_put(problem.params, everywhere)
    run = compiled(run)
    spread = run(0.5, placed[0], params, *placed[1:])
    assert_close(spread, run(0.5, SOME, problem.params, *problem.batch), 1e-5)


@pytest.mark.newest_only
@pytest.mark.parametrize("name", ["mlp", "weight_normalisation", "lstm"])
def test_compiled_or_not_the_sum_is_the_same(name):
    run, problem = clipping(name)
    arguments = 0.5, SOME, problem.params, *problem.batch
    assert_close(run(*arguments), compiled(run)(*arguments), 1e-5)


@pytest.mark.newest_only
@pytest.mark.parametrize("name", ["mlp", "embedding_with_many_repeated_tokens", "lstm"])
def test_the_sum_is_the_same_under_vmap(name):
    run, problem = clipping(name)
    twice = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), problem.params)
    both = compiled(jax.vmap(lambda params: run(0.5, SOME, params, *problem.batch)))(twice)
    for i in range(2):
        params = jax.tree.map(lambda leaf, i=i: leaf[i], twice)
        expected = compiled(run)(0.5, SOME, params, *problem.batch)
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], both), expected, 1e-5)
