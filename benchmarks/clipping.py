"""What does a clipped gradient cost? Ways to clip, against the plain gradient of the same loss.

    python benchmarks/clipping.py [--models mlp_256,lstm_64] [--rounds 7] [--picture PATH]

All ways run interleaved in one process. The floor is ``jax.grad`` of the mean loss; the table shows
medians over rounds of the ratio to the floor in the same round. Clip norms are near the median
norm, so that about half of the examples are clipped. jax_privacy is measured if it is installed.
"""

import argparse
import functools
import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import models
import optax

import jaxdp

SECONDS_PER_SAMPLE = 0.03  # fast functions are called several times for one timing
SECONDS_PER_WAY = 10.0  # a way that has used them up has no further rounds, after the third
LARGEST_TEMPORARIES = 2e9  # bytes; a way that needs more is not run
COMPILATIONS = 3


class Costs(NamedTuple):
    seconds: float  # of one call; NaN where it was not run
    temporary_bytes: float
    compile_seconds: float


class Measured(NamedTuple):
    costs: Costs  # medians
    ratios: Costs  # to the plain gradient's; for seconds the median of each round's ratio


def mean_gradient(model: models.Model, clip_norm: float) -> Callable[..., Any]:
    in_axes = (None,) * (1 + len(model.frozen)) + (0,) * len(model.batch)

    def mean_loss(params, *rest):
        return jnp.mean(jax.vmap(model.loss_fn, in_axes)(params, *rest))

    return jax.grad(mean_loss)


def ours(model: models.Model, clip_norm: float, strategy: str) -> Callable[..., Any]:
    frozen = tuple(range(1, 1 + len(model.frozen)))
    grad_fn = jaxdp.clipped_grad(
        model.loss_fn, l2_clip_norm=clip_norm, strategy=strategy, frozen_argnums=frozen
    )
    return lambda *args: grad_fn(*args).value


def jax_privacy_clipped_grad(model: models.Model, clip_norm: float) -> Callable[..., Any]:
    from jax_privacy import clipping

    first = 1 + len(model.frozen)
    return clipping.clipped_grad(
        model.loss_fn,
        l2_clip_norm=clip_norm,
        batch_argnums=tuple(range(first, first + len(model.batch))),
        keep_batch_dim=False,
    )


def optax_aggregate(model: models.Model, clip_norm: float) -> Callable[..., Any]:
    """With a noise multiplier of zero, though it draws its noise all the same."""
    in_axes = (None,) * (1 + len(model.frozen)) + (0,) * len(model.batch)
    aggregate = optax.contrib.differentially_private_aggregate(clip_norm, 0.0, jax.random.key(0))

    def run(params, *rest):
        gradients = jax.vmap(jax.grad(model.loss_fn), in_axes)(params, *rest)
        return aggregate.update(gradients, aggregate.init(params))[0]

    return run


FLOOR, OURS = "plain gradient", "jaxdp"
WAYS: dict[str, Callable[[models.Model, float], Callable[..., Any]]] = {
    FLOOR: mean_gradient,
    OURS: functools.partial(ours, strategy="auto"),
    "jaxdp per_example": functools.partial(ours, strategy="per_example"),
    "jax_privacy": jax_privacy_clipped_grad,
    "Optax": optax_aggregate,
}


def median_norm(model: models.Model) -> float:
    """Of the first examples' gradients."""

    def norm(example):
        return optax.global_norm(jax.grad(model.loss_fn)(model.params, *model.frozen, *example))

    first = jax.tree.map(lambda leaf: leaf[:9], model.batch)
    return float(jnp.median(jax.jit(lambda batch: jax.lax.map(norm, batch))(first)))


def compile_afresh(way: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, float]:
    """Compiles without what earlier compilations have left in the caches of tracing."""
    jax.clear_caches()
    start = time.perf_counter()
    # A new function, since a function that was traced before is not traced again.
    compiled = jax.jit(lambda *args: way(*args)).lower(*args).compile()
    return compiled, time.perf_counter() - start


def seconds_per_call(compiled: Any, args: tuple[Any, ...], calls: int) -> float:
    """Of some calls, after one that brings back what the way before drove out of the caches."""
    jax.block_until_ready(compiled(*args))
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(compiled(*args))
    return (time.perf_counter() - start) / calls


def time_interleaved(
    programs: dict[str, Any], args: tuple[Any, ...], rounds: int
) -> dict[str, list[float]]:
    """The seconds of a call of each program in each round."""
    first = {name: seconds_per_call(program, args, 2) for name, program in programs.items()}
    calls = {name: max(1, round(SECONDS_PER_SAMPLE / first[name])) for name in programs}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for done in range(rounds):
        for name, program in programs.items():
            if done < 3 or sum(samples[name]) * calls[name] < SECONDS_PER_WAY:
                samples[name].append(seconds_per_call(program, args, calls[name]))
    return samples


def measure(model: models.Model, ways: list[str], rounds: int) -> dict[str, Measured]:
    args = (model.params, *model.frozen, *model.batch)
    clip_norm = median_norm(model)
    functions = {name: WAYS[name](model, clip_norm) for name in ways}
    programs: dict[str, Any] = {}
    compile_seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(min(rounds, COMPILATIONS)):
        for name, function in functions.items():
            programs[name], seconds = compile_afresh(function, args)
            compile_seconds[name].append(seconds)
    sizes = {name: programs[name].memory_analysis().temp_size_in_bytes for name in ways}
    fitting = {name: programs[name] for name in ways if sizes[name] <= LARGEST_TEMPORARIES}
    samples = {name: [math.nan] for name in ways} | time_interleaved(fitting, args, rounds)

    def summary(name):
        costs = Costs(
            statistics.median(samples[name]), sizes[name], statistics.median(compile_seconds[name])
        )
        # The floor goes on where a slow way has stopped, so their rounds need not be as many.
        slower = [ours / plain for ours, plain in zip(samples[name], samples[FLOOR], strict=False)]
        ratios = Costs(
            statistics.median(slower),
            sizes[name] / sizes[FLOOR],
            costs.compile_seconds / statistics.median(compile_seconds[FLOOR]),
        )
        return Measured(costs, ratios)

    return {name: summary(name) for name in ways}


def show_ratios(ratios: Costs) -> str:
    return ", ".join(
        "not run" if math.isnan(ratio) else f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"
        for ratio in ratios
    )


def table_row(name: str, results: dict[str, Measured]) -> str:
    floor = results[FLOOR].costs
    cells = [
        f"{1e3 * floor.seconds:.2f} ms, {floor.temporary_bytes / 1e6:.1f} MB, "
        f"{floor.compile_seconds:.2f} s"
    ]
    cells += [show_ratios(result.ratios) for way, result in results.items() if way != FLOOR]
    return f"| {name} | {' | '.join(cells)} |"


def geometric_means(table: dict[str, dict[str, Measured]], way: str) -> Costs:
    """Over the models that were run this way."""
    run = [results[way].ratios for results in table.values()]
    run = [ratios for ratios in run if not math.isnan(ratios.seconds)]
    return Costs(*(statistics.geometric_mean(column) for column in zip(*run, strict=True)))


def draw(table: dict[str, dict[str, Measured]], ways: list[str], path: str) -> None:
    """Time and temporaries of each way, as ratios to the floor."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 0.5 + 0.55 * len(table)), sharey=True)
    names = list(table)
    shown = [way for way in ways if way != FLOOR]
    height = 0.8 / len(shown)
    titles = ("Time", "Temporary memory")
    for field, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        for i, way in enumerate(shown):
            places = [row + (i - (len(shown) - 1) / 2) * height for row in range(len(names))]
            ratios = [table[name][way].ratios[field] for name in names]
            panel.barh(places, ratios, height=height, label=way)
        panel.axvline(1.0, color="black", linewidth=1)
        panel.set_xscale("log")
        panel.set_title(f"{title}, ratio to the plain gradient")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="comma-separated; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--picture", help="where to draw the table")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round, no peers")
    args = parser.parse_args()
    known = models.SMALL_MODELS if args.smoke else models.MODELS
    names = args.models.split(",") if args.models else list(known)
    if unknown := set(names) - set(known):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    ways = list(WAYS)[:3] if args.smoke else list(WAYS)
    if "jax_privacy" in ways and importlib.util.find_spec("jax_privacy") is None:
        print("jax_privacy is not installed, so it is left out.\n")
        ways.remove("jax_privacy")

    print("Time, XLA temporaries and compilation: of the plain gradient, then ratios to it.\n")
    print(f"| model | {' | '.join(ways)} |")
    print("|---" * (1 + len(ways)) + "|")
    table = {}
    for name in names:
        table[name] = measure(known[name](), ways, 1 if args.smoke else args.rounds)
        print(table_row(name, table[name]), flush=True)
    means = [show_ratios(geometric_means(table, way)) for way in ways if way != FLOOR]
    print(f"| geometric mean | | {' | '.join(means)} |")
    if args.picture:
        draw(table, ways, args.picture)


if __name__ == "__main__":
    main()
