"""What the MNIST scripts share on the command line: options, data, and what they print."""

import argparse
import time
from pathlib import Path

import jax.numpy as jnp
import matplotlib
import numpy as np
from sklearn.datasets import load_digits

from published import idx_files


def parse(description, arguments, **recipe):
    """The command line, with a recipe's numbers as defaults; ``--smoke`` makes them small."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="folder with the four IDX files of MNIST")
    parser.add_argument("--delta", type=float, default=1e-5)
    for name, value in recipe.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="a run for each, fixed bit for bit by it"
    )
    parser.add_argument("--chunk", type=int, default=50, help="steps between progress updates")
    parser.add_argument("--output", type=Path, help="save a picture of the run here")
    parser.add_argument(
        "--smoke", action="store_true", help="a few steps on small digits, to see that it runs"
    )
    args = parser.parse_args(arguments)
    if args.chunk < 1:
        parser.error(f"--chunk must be at least 1, got {args.chunk}")
    if args.smoke:
        args.num_steps, args.chunk, args.expected_batch_size = 6, 3, 200.0
        args.averaged_steps = 2
    elif args.data_dir is None:
        parser.error("--data-dir is needed: docs/published.md says where to get MNIST")
    return args


def _enlarged_digits():
    """scikit-learn's digits of 8 x 8 pixels as pictures of 28 x 28, for smoke runs."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.kron(pixels.reshape(-1, 8, 8) / 16, np.ones((3, 3)))
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.float32)
    labels = labels.astype(np.int32)
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def load(args):
    """Training and test set: pairs of images [examples, 28, 28], in [0, 1], and labels."""
    splits = _enlarged_digits() if args.smoke else idx_files.read_mnist(args.data_dir)
    train_set, test_set = (tuple(map(jnp.asarray, split)) for split in splits)
    return train_set, test_set


def save_picture(path, histories):
    """Test accuracy of each run, and epsilon, against steps."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    spent = axis.twinx()
    for index, history in enumerate(histories):
        steps, epsilons, accuracies = history.T
        label = "test accuracy" if index == 0 else None
        axis.plot(steps, 100 * accuracies, "o-", color="#0072B2", label=label)
    spent.plot(steps, epsilons, "s--", color="#D55E00", label="epsilon spent in training")
    axis.set(xlabel="step", ylabel="test accuracy (%)")
    spent.set(ylabel="epsilon spent in training", ylim=(0, 1.1 * epsilons[-1]))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def run_all(args, run) -> float:
    """Runs every seed; prints test accuracies after the last step and the statement of one run.

    Args:
      args: What ``parse`` returned.
      run: Function of a seed that returns the ``training.Result`` and the privacy statement.

    Returns:
      The mean test accuracy.
    """
    histories = []
    for seed in args.seeds:
        started = time.monotonic()
        result, statement = run(seed)
        histories.append(result.history)
        seconds = time.monotonic() - started
        accuracy = result.history[-1, 2]
        print(f"seed {seed}: test accuracy {100 * accuracy:.2f} %, {seconds:.0f} s", flush=True)
    accuracies = np.array([history[-1, 2] for history in histories])
    if len(accuracies) > 1:
        mean, spread = 100 * accuracies.mean(), 100 * accuracies.std(ddof=1)
        print(f"test accuracy: {mean:.2f} % (standard deviation {spread:.2f})")
    if args.output is not None:
        save_picture(args.output, histories)
        print(f"picture: {args.output}")
    print(f"\nEach run:\n{statement}")
    return float(accuracies.mean())
