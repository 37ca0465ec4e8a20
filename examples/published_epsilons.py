"""Recomputes the epsilons that papers and libraries published for DP-SGD on MNIST.

    python examples/published_epsilons.py

Each row is a configuration, the epsilon that was stated for it, and the epsilon by three
accountants: moments (whole orders and the classical tail bound, as Abadi et al. 2016), Renyi DP
(best real order, newer conversion), and exact. Delta is 1e-5, neighbours differ by one example
added or removed, and batches are Poisson samples, as the sources accounted for them.
"""

import argparse
from typing import NamedTuple

from jaxdp import accounting as acc

DELTA = 1e-5
ACCOUNTANTS = ("moments", "rdp", "exact")
MNIST = 60_000
# The mean and the second moments of scattering features, each with noise multiplier 8.
NORMALISATION = acc.Gaussian(8.0) * 2


class Published(NamedTuple):
    source: str
    run: acc.Event
    stated: float


class Row(NamedTuple):
    source: str
    stated: float
    recomputed: dict[str, float]  # by accountant


def dp_sgd(noise_multiplier, sampling_probability, num_steps):
    return acc.PoissonSampled(sampling_probability, acc.Gaussian(noise_multiplier)) * num_steps


def in_batches(noise_multiplier, batch_size, epochs):
    """Whole epochs over MNIST, each of as many whole batches as there are."""
    return dp_sgd(noise_multiplier, batch_size / MNIST, MNIST // batch_size * epochs)


def published():
    """What was stated: the papers' text, and the tables in the libraries' own descriptions."""
    return [
        Published("Abadi et al. 2016, sigma 4, 100 epochs", dp_sgd(4.0, 0.01, 10_000), 1.26),
        Published("TF Privacy, sigma 1.12, 60 epochs", in_batches(1.12, 256, 60), 2.92),
        Published("TF Privacy, sigma 0.6, 30 epochs", in_batches(0.6, 256, 30), 9.74),
        Published("TF Privacy, sigma 1.2, 10 epochs", in_batches(1.2, 256, 10), 1.20),
        Published("Opacus, sigma 1.3, 15 epochs", dp_sgd(1.3, 0.004, 15 * 250), 1.16),
        Published("Opacus, sigma 1.1, 60 epochs", dp_sgd(1.1, 0.004, 60 * 250), 2.91),
        Published("Opacus, sigma 0.7, 45 epochs", dp_sgd(0.7, 0.004, 45 * 250), 6.86),
        Published("Tramer and Boneh 2021, CNN, sigma 1.23", in_batches(1.23, 512, 40), 3.0),
        Published(
            "Tramer and Boneh 2021, scattering, sigma 3.04",
            NORMALISATION + in_batches(3.04, 4096, 40),
            3.0,
        ),
    ]


def recompute(entry):
    by_accountant = {
        name: float(acc.epsilon(entry.run, delta=DELTA, accountant=name)) for name in ACCOUNTANTS
    }
    return Row(entry.source, entry.stated, by_accountant)


def needed_noise(batch_size, epochs, target_epsilon):
    """The noise multiplier for a budget by each accountant."""
    return {
        name: float(
            acc.calibrate(
                lambda sigma: in_batches(sigma, batch_size, epochs),
                target_epsilon=target_epsilon,
                delta=DELTA,
                accountant=name,
            )
        )
        for name in ACCOUNTANTS
    }


def line(label, stated, numbers, digits):
    cells = "".join(f"{numbers[name]:10.{digits}f}" for name in ACCOUNTANTS)
    return f"{label:<48}{stated:>8}{cells}"


def main(arguments=None) -> list[Row]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="the first two rows only")
    args = parser.parse_args(arguments)
    entries = published()[:2] if args.smoke else published()
    rows = [recompute(entry) for entry in entries]
    head = "".join(f"{name:>10}" for name in ACCOUNTANTS)
    print(f"{'epsilon at delta = 1e-5':<48}{'stated':>8}{head}")
    for row in rows:
        print(line(row.source, f"{row.stated:.2f}", row.recomputed, 4))
    if not args.smoke:
        print(f"\n{'noise multiplier for epsilon 3, batches of 512':<48}{'stated':>8}{head}")
        print(line("Tramer and Boneh 2021, CNN, 40 epochs", "1.23", needed_noise(512, 40, 3.0), 4))
    return rows


if __name__ == "__main__":
    main()
