"""Kills a private training run in the middle, resumes it, and compares the bits.

    python examples/resume.py                  # killed, resumed, and compared
    python examples/resume.py --train out/run  # trains, saving as it goes; run again to go on

A checkpoint holds all that the next step reads: model, optimizer, budget, the noise's key and step,
and the sampler's. The resumed run is then the uninterrupted one, bit for bit, and draws no noise
twice. It holds the keys of the noise: it is for the curator alone.
"""

import argparse
import pathlib
import signal
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from tqdm import tqdm

import jaxdp
from jaxdp import checkpoint


def loss_fn(params, example):
    image, label = example
    scores = image @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, label)


def make_run(args):
    """The state that a run begins with, and the function that takes some of its steps."""
    pixels, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels, jnp.int32)
    private = jaxdp.make_private(
        loss_fn,
        optax.adam(0.05),
        target_epsilon=3.0,
        delta=1e-5,
        num_examples=len(images),
        expected_batch_size=200,
        num_steps=args.num_steps,
        l2_clip_norm=0.5,
    )
    noise_key, sampler_key = jax.random.split(jax.random.key(args.seed))
    params = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    first = {
        "private": private.init(params, noise_key),
        "sampler_key": sampler_key,
        "step": jnp.int32(0),
    }

    def step(state, _):
        # The batch is a function of the state: a resumed run draws the one it would have drawn.
        batch = private.sample(jax.random.fold_in(state["sampler_key"], state["step"]))
        examples = images[batch.indices], labels[batch.indices]
        after, metrics = private.step(state["private"], examples, batch.is_padding)
        return {**state, "private": after, "step": state["step"] + 1}, metrics.epsilon

    @jax.jit
    def take_steps(state):
        state, epsilons = jax.lax.scan(step, state, length=args.chunk)
        return state, epsilons[-1]

    return first, take_steps


def train(args, folder=None):
    """Trains to the end; with a folder, from where it says, and saving as it goes."""
    state, take_steps = make_run(args)
    if folder is not None and checkpoint.exists(folder):
        state = checkpoint.restore(folder, state)
    done = int(state["step"])
    with tqdm(total=args.num_steps, initial=done, desc="private training", disable=None) as bar:
        while done < args.num_steps:
            state, epsilon = take_steps(state)
            done = int(state["step"])
            if folder is not None:
                checkpoint.save(folder, state)
                print(f"saved step {done}, epsilon {float(epsilon):.4f}", flush=True)
            bar.update(args.chunk)
    return state


def demonstrate(args, folder):
    command = [sys.executable, __file__, "--train", str(folder), "--num-steps", str(args.num_steps)]
    command += ["--chunk", str(args.chunk), "--seed", str(args.seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        half = f"saved step {args.num_steps // 2}"
        for line in process.stdout or ():
            print(line, end="")
            if line.startswith(half):
                break
        process.send_signal(signal.SIGKILL)
    print(f"killed: exit status {process.returncode}")
    subprocess.run(command, check=True)
    uninterrupted = train(args)
    resumed = checkpoint.restore(folder, uninterrupted)
    same = [bits(resumed) == bits(uninterrupted) for bits in (bits_of_params, bits_of_all)]
    print(f"resumed and uninterrupted model: {'the same bits' if same[0] else 'DIFFERENT'}")
    print(f"everything else in the state:    {'the same bits' if same[1] else 'DIFFERENT'}")
    return 0 if all(same) else 1


def bits_of_all(state):
    def numbers(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return [numbers(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def bits_of_params(state):
    return bits_of_all(state["private"].params)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=pathlib.Path, help="only train, with checkpoints here")
    parser.add_argument("--num-steps", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="fixes the run bit for bit")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    args = parser.parse_args(arguments)
    if args.smoke:
        args.num_steps, args.chunk = 8, 2
    if args.chunk < 1 or args.num_steps % (2 * args.chunk):
        parser.error("--num-steps must be a multiple of twice --chunk")
    return args


def main(arguments=None):
    args = parse_arguments(arguments)
    if args.train is not None:
        train(args, args.train)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return demonstrate(args, pathlib.Path(folder) / "run")


if __name__ == "__main__":
    raise SystemExit(main())
