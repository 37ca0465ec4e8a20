"""One private training run of a classifier: a ``lax.scan``, in chunks for the progress bar."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm


class Result(NamedTuple):
    params: Any  # the average of the last iterates
    history: np.ndarray  # [chunks, 3]: step, epsilon spent, test accuracy


def accuracy_of(scores, params, inputs, labels):
    """The share of examples whose largest score is that of their label."""
    predicted = jax.lax.map(
        lambda one: jnp.argmax(scores(params, one)), inputs, batch_size=min(1000, len(inputs))
    )
    return jnp.mean(predicted == labels)


def train(private, scores, params, train_set, test_set, seed, args) -> Result:
    """Takes every step of a private run; the test accuracy is that of the averaged model.

    Args:
      private: What ``jaxdp.make_private`` returned.
      scores: ``scores(params, input)`` of one example.
      params: The parameters to start from.
      train_set: Pair of inputs and labels, each with a leading example axis.
      test_set: The same.
      seed: Fixes sampling and noise.
      args: ``args.chunk`` steps lie between progress updates, each of which computes the test
        accuracy. The model is an exponential average of the iterates over about
        ``args.averaged_steps`` steps: computed from released models alone, it costs no privacy.
    """

    # The data are an argument: what a compiled program closes over becomes a constant inside it.
    @jax.jit
    def take_steps(carry, keys, train_set, test_set):
        def step(carry, key):
            state, average = carry
            batch = private.sample(key)  # a Poisson sample, as accounted
            examples = jax.tree.map(lambda leaf: leaf[batch.indices], train_set)
            state, metrics = private.step(state, examples, batch.is_padding)
            average = optax.incremental_update(state.params, average, 1 / args.averaged_steps)
            return (state, average), metrics.epsilon

        (state, average), epsilons = jax.lax.scan(step, carry, keys)
        return (state, average), epsilons[-1], accuracy_of(scores, average, *test_set)

    noise_key, sample_key = jax.random.split(jax.random.key(seed))
    carry = private.init(params, noise_key), params
    num_steps = private.plan.num_steps
    keys = jax.random.split(sample_key, num_steps)
    history = []
    # disable=None: quiet where the output is no terminal.
    with tqdm(total=num_steps, desc="private training", disable=None) as bar:
        for start in range(0, num_steps, args.chunk):
            some = keys[start : start + args.chunk]
            carry, epsilon, accuracy = take_steps(carry, some, train_set, test_set)
            history.append((start + len(some), float(epsilon), float(accuracy)))
            bar.update(len(some))
            bar.set_postfix(epsilon=f"{epsilon:.3f}", test=f"{100 * accuracy:.2f} %")
    return Result(carry[1], np.asarray(history))
