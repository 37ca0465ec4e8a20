"""Events: what they accept, how they compose, that they are pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import accounting as acc

GAUSSIAN = acc.Gaussian(1.0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: acc.Gaussian(-1.0), "noise_multiplier"),
        (lambda: acc.Gaussian(float("nan")), "noise_multiplier"),
        (lambda: acc.Gaussian(float("inf")), "noise_multiplier"),
        (lambda: acc.Gaussian("1.0"), "noise_multiplier"),
        (lambda: acc.Gaussian(np.ones(2)), "noise_multiplier"),
        (lambda: acc.Gaussian(True), "noise_multiplier"),
        (lambda: acc.Laplace(-0.5), "noise_multiplier"),
        (lambda: acc.Laplace(float("nan")), "noise_multiplier"),
        (lambda: acc.PoissonSampled(1.5, GAUSSIAN), "sampling_probability"),
        (lambda: acc.PoissonSampled(-0.1, GAUSSIAN), "sampling_probability"),
        (lambda: acc.PoissonSampled(float("nan"), GAUSSIAN), "sampling_probability"),
        (lambda: acc.PoissonSampled(0.5, 1.0), "event"),
        (lambda: acc.PoissonSampled(0.5, acc.PoissonSampled(0.5, GAUSSIAN)), "event"),
        (lambda: acc.PoissonSampled(0.5, acc.Laplace(1.0) * 2), "event"),
        (lambda: acc.PoissonSampled(0.5, acc.Laplace(1.0) + GAUSSIAN), "event"),
        (lambda: acc.Repeated(GAUSSIAN, -1), "count"),
        (lambda: acc.Repeated(GAUSSIAN, 2.5), "count"),
        (lambda: acc.Repeated(GAUSSIAN, float("inf")), "count"),
        (lambda: acc.Repeated(1.0, 2), "event"),
        (lambda: acc.Composed([GAUSSIAN, 1.0]), r"events\[1\]"),
        (lambda: acc.Composed(GAUSSIAN), "events"),
    ],
)
def test_a_bad_event_is_refused_by_the_name_of_its_argument(make, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        make()


def test_numbers_are_leaves_and_rebuilding_does_not_check_them():
    run = acc.PoissonSampled(0.1, acc.Gaussian(2.0)) * 3 + acc.Laplace(1.0)
    assert jax.tree.leaves(run) == [0.1, 2.0, 3, 1.0]
    assert jax.tree.map(lambda leaf: leaf, run) == run
    jax.tree.map(lambda leaf: object(), run)


def test_several_answers_about_one_sample_are_one_gaussian():
    # Four microbatches of one lot at multiplier 2 are one release at multiplier 1.
    microbatches = acc.PoissonSampled(0.01, acc.Gaussian(2.0) * 4)
    once = acc.PoissonSampled(0.01, acc.Gaussian(1.0))
    assert acc.epsilon(microbatches * 100, 1e-5) == acc.epsilon(once * 100, 1e-5)
    # Counting them as four events at q, or as one at q / 4, gives something else.
    assert acc.epsilon(acc.PoissonSampled(0.01, acc.Gaussian(2.0)) * 400, 1e-5) < acc.epsilon(
        once * 100, 1e-5
    )
    mixed = acc.PoissonSampled(0.01, acc.Gaussian(1.25) + acc.Gaussian(5.0 / 3.0))
    assert acc.epsilon(mixed, 1e-5) == pytest.approx(acc.epsilon(once, 1e-5), rel=1e-9)


def test_traced_counts_and_probabilities_pass_through():
    def run(q, s, count):
        return acc.PoissonSampled(q, acc.Gaussian(s)) * count

    @jax.jit
    def spent(*numbers):
        both = ("rdp", "auto")
        return [acc.epsilon(run(*numbers), 1e-5, accountant=accountant) for accountant in both]

    for numbers in [(0.01, 1.0, 1000), (1.0, 20.0, 10), (0.01, 1.0, 0), (0.0, 1.0, 10)]:
        by_renyi, by_default = spent(*numbers)
        host = acc.epsilon(run(*numbers), 1e-5, accountant="rdp")
        assert by_renyi == pytest.approx(host, rel=1e-4)
        assert acc.epsilon_bounds(run(*numbers), 1e-5).lower * (1 - 1e-6) <= by_default
        assert by_default <= by_renyi
    # In programs "auto" is the exact accountant too.
    exact = acc.epsilon(run(0.01, 1.0, 1000), 1e-5, accountant="exact")
    assert spent(0.01, 1.0, 1000)[1] == pytest.approx(exact, rel=2e-5)
    assert spent(0.01, 0.0, 10) == [jnp.inf, jnp.inf]
    assert spent(0.01, 0.0, 0) == [0.0, 0.0]
