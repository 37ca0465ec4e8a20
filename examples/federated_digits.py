"""Federated learning on real handwritten digits, private for every client as a whole.

    python examples/federated_digits.py                      # epsilon 8, about a minute
    python examples/federated_digits.py --target-epsilon 4 --seed 7

The data ship inside scikit-learn: 1,437 training images of 8 x 8 pixels. They are split over
clients that each have mostly a few of the digits (a Dirichlet law over labels) and from one image
to some dozens. Federated averaging runs with and without differential privacy; the unit of
privacy is a client with all its images. All rounds between two updates of the progress bar are
one compiled program.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

from jaxdp import federated


def dirichlet_split(rng, images, labels, num_clients, concentration):
    """Client data sets whose sizes and labels are far from alike: a list of (images, labels)."""
    # Every label is dealt out in proportions of its own; clients differ in size, too.
    popularity = rng.lognormal(sigma=0.5, size=num_clients)
    owners = np.empty(len(labels), int)
    for label in range(10):
        shares = rng.dirichlet(concentration * popularity / popularity.mean())
        mine = np.nonzero(labels == label)[0]
        owners[mine] = rng.choice(num_clients, size=len(mine), p=shares)
    return federated.from_client_ids((images, labels), owners, num_clients=num_clients)


def logits(params, images):
    """Softmax regression on pixels that are centred and scaled image by image."""
    images = images - images.mean(-1, keepdims=True)
    images = images / jnp.sqrt(jnp.sum(images**2, -1, keepdims=True) + 1e-6)
    return images @ params["w"] + params["b"]


def loss_fn(params, example):
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)


def make_plans(args, num_clients):
    """The private run, and the same cohorts and clip norm without noise."""
    cohorts = federated.PoissonCohorts(
        num_clients, expected_cohort_size=args.cohort_share * num_clients
    )
    settings = {"num_rounds": args.num_rounds, "l2_clip_norm": args.l2_clip_norm}
    private = federated.make_plan(
        cohorts, target_epsilon=args.target_epsilon, delta=args.delta, **settings
    )
    public = federated.make_plan(private.cohorts, noise_multiplier=0.0, **settings)
    return {"private": private, "not private": public}


def train(args, name, plan, federation, test):
    """The test accuracy and the epsilon after every round, [num_rounds] each."""
    images, labels = test

    def evaluate(params):
        return jnp.mean(jnp.argmax(logits(params, images), axis=-1) == labels)

    client_update = federated.local_training(
        loss_fn, optax.sgd(args.client_learning_rate), num_epochs=args.num_epochs, batch_size=16
    )
    server_optimizer = optax.sgd(args.server_learning_rate, momentum=0.9)
    fed = federated.make_round(client_update, server_optimizer, plan, evaluate=evaluate)
    rounds = {
        length: jax.jit(lambda f, c, n=length: federated.run_rounds(fed, f, c, n))
        for length in {args.chunk, args.num_rounds % args.chunk} - {0}
    }
    params = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    carry, accuracies, epsilons = fed.init(params, jax.random.key(args.seed)), [], []
    # disable=None: quiet where the output is no terminal.
    with tqdm(total=args.num_rounds, desc=name, disable=None) as bar:
        for start in range(0, args.num_rounds, args.chunk):
            length = min(args.chunk, args.num_rounds - start)
            carry, metrics = rounds[length](federation, carry)
            accuracies.append(np.asarray(metrics.evaluation))
            epsilons.append(np.asarray(metrics.epsilon))
            bar.update(length)
            # The test images are nobody's in the federation: accuracy on them may be shown.
            bar.set_postfix(
                accuracy=f"{100 * accuracies[-1][-1]:.1f} %", epsilon=f"{epsilons[-1][-1]:.3f}"
            )
    return np.concatenate(accuracies), np.concatenate(epsilons)


def save_picture(path: Path, curves, target_epsilon: float):
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    styles = {"private": ("o-", "#0072B2"), "not private": (":", "#000000")}
    for name, (accuracies, _) in curves.items():
        style, color = styles[name]
        rounds = np.arange(1, len(accuracies) + 1)
        every = max(len(rounds) // 20, 1)
        axis.plot(rounds, 100 * accuracies, style, color=color, label=name, markevery=every)
    axis.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
    spent = axis.twinx()
    epsilons = curves["private"][1]
    spent.plot(np.arange(1, len(epsilons) + 1), epsilons, "--", color="#D55E00", label="epsilon")
    spent.set(ylabel="epsilon spent", ylim=(0, 1.1 * target_epsilon))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target-epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-3, help="below 1 / clients")
    parser.add_argument("--num-clients", type=int, default=150)
    parser.add_argument("--concentration", type=float, default=0.3, help="small: few labels each")
    parser.add_argument("--num-rounds", type=int, default=60)
    parser.add_argument("--cohort-share", type=float, default=0.5)
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--l2-clip-norm", type=float, default=0.5)
    parser.add_argument("--client-learning-rate", type=float, default=1.0)
    parser.add_argument("--server-learning-rate", type=float, default=1.0)
    parser.add_argument("--chunk", type=int, default=5, help="rounds between progress updates")
    parser.add_argument("--seed", type=int, default=0, help="fixes the run bit for bit")
    parser.add_argument("--output", type=Path, default=Path("out/federated_digits.png"))
    parser.add_argument("--smoke", action="store_true", help="a few rounds, to see that it runs")
    args = parser.parse_args(arguments)
    if args.chunk < 1:
        parser.error(f"--chunk must be at least 1, got {args.chunk}")
    if args.smoke:
        # All clients in every round: accounted for in closed form, without compiling anything.
        args.num_rounds, args.chunk, args.cohort_share = 4, 2, 1.0
    return args


def main(arguments=None) -> dict[str, float]:
    args = parse_arguments(arguments)
    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(
        (pixels / 16).astype(np.float32),
        labels.astype(np.int32),
        test_size=0.2,
        random_state=0,
        stratify=labels,
    )
    train_images, test_images, train_labels, test_labels = split
    federation = dirichlet_split(
        np.random.default_rng(args.seed),
        train_images,
        train_labels,
        args.num_clients,
        args.concentration,
    )
    test = (jnp.asarray(test_images), jnp.asarray(test_labels))
    plans = make_plans(args, args.num_clients)
    curves = {name: train(args, name, plan, federation, test) for name, plan in plans.items()}
    save_picture(args.output, curves, args.target_epsilon)

    sizes = np.asarray(federation.sizes)
    print(f"clients:                     {len(sizes)}, {sizes.min()} to {sizes.max()} images each")
    results = {}
    for name, (accuracies, _) in curves.items():
        results[name] = float(accuracies[-1])
        print(f"{'test accuracy, ' + name + ':':<29}{100 * accuracies[-1]:.1f} %")
    print(f"epsilon spent:               {curves['private'][1][-1]:.4f}")
    print(f"picture:                     {args.output}")
    print(f"\n{plans['private']}")
    return results


if __name__ == "__main__":
    main()
