# %% [markdown]
# # Which accountant?
#
# All accountants answer one question: what does this run cost? They differ in how close they come
# to the truth, for which runs they work, how long they take, and whether they are bounds at all.
# This notebook measures it: tightness and speed in one picture, then what lies behind a single
# epsilon (privacy profiles and trade-off curves), and tiny deltas.

# %%
# %matplotlib inline
import math
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from IPython.display import display
from matplotlib.figure import Figure

from jaxdp import accounting as acc
from jaxdp import report

SMOKE = os.environ.get("JAXDP_SMOKE") == "1"  # a shorter run, to see that all works
DELTA = 1e-5


def dp_sgd(num_steps, noise_multiplier=1.0):
    return acc.PoissonSampled(0.01, acc.Gaussian(noise_multiplier)) * num_steps


run = dp_sgd(1_000)

# %% [markdown]
# ## One run, every accountant
#
# DP-SGD with sampling probability 0.01, noise multiplier 1, and 1,000 steps, at
# $\delta = 10^{-5}$:

# %%
rows = {row.accountant: row for row in acc.compare(run, DELTA)}
for row in rows.values():
    kind = "bound" if row.certified else "NOT a bound"
    print(f"{row.accountant:10}{row.epsilon:12.4f}   {kind:12} {row.note}")
lower, upper = acc.epsilon_bounds(run, DELTA)
print(f"\nthe truth is between {lower:.9f} and {upper:.9f}")
assert upper - lower < 1e-9
assert rows["clt"].epsilon < lower
for name, stated in (("moments", 2.54), ("rdp", 2.10), ("exact", 1.83), ("clt", 1.62)):
    assert abs(rows[name].epsilon - stated) < 5e-3

# %% [markdown]
# The composition theorems (naive, advanced, optimal) know of a step only its
# $(\varepsilon, \delta)$. For many sampled steps they are useless: hundreds, where the truth is
# 1.83. Among those that know the mechanism, the moments accountant says 2.54, Renyi DP 2.10. The
# last line is the central limit theorem: 1.62, *below* the truth. It looks best and protects
# nobody.
#
# ## Tightness and speed
#
# The same question, asked again and again: the median of warm calls. Times are those of the
# machine that this notebook was run on, so look at the ratios. The two points of `dp_accounting`,
# Google's library, are an independent check as well.


# %%
def milliseconds(ask, repeats):
    """The answer, and the median time of a warm call."""
    answer = ask()  # compiles
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        ask()
        times.append(1e3 * (time.perf_counter() - began))
    return answer, statistics.median(times)


theirs = acc.to_dp_accounting(run)
tools = {
    "moments": lambda: acc.epsilon(run, DELTA, accountant="moments"),
    "rdp": lambda: acc.epsilon(run, DELTA, accountant="rdp"),
    "pld": lambda: acc.epsilon(run, DELTA, accountant="pld"),
    "exact": lambda: acc.epsilon(run, DELTA, accountant="exact"),
    "clt (no bound)": lambda: acc.clt_epsilon(run, DELTA),
    "dp_accounting, RDP": lambda: RdpAccountant().compose(theirs).get_epsilon(DELTA),
    "dp_accounting, PLD": lambda: PLDAccountant().compose(theirs).get_epsilon(DELTA),
}
measured = {name: milliseconds(ask, 3 if SMOKE else 9) for name, ask in tools.items()}
for name, (epsilon, duration) in measured.items():
    print(f"{name:20}{epsilon:9.4f}{duration:9.1f} ms")
assert abs(measured["dp_accounting, PLD"][0] - upper) < 1e-4

# %%
figure = Figure(figsize=(6.8, 4.2), layout="constrained")
axes = figure.add_subplot()
axes.axhline(upper, color="#888888", linewidth=0.8)
axes.annotate("the truth", (0.01, upper + 0.01), xycoords=("axes fraction", "data"))
for index, (name, (epsilon, duration)) in enumerate(measured.items()):
    axes.plot(duration, epsilon, "osD^vPX"[index], color="#0072B2", markersize=8)
    below = name in ("pld", "exact")  # where two labels would meet
    axes.annotate(
        name,
        (duration, epsilon),
        textcoords="offset points",
        xytext=(0, -18 if below else 8),
        ha="center",
    )
axes.set_xscale("log")
axes.set(
    xlabel="milliseconds of a warm call, on this machine", ylabel=f"epsilon at delta {DELTA:g}"
)
fastest, slowest = axes.get_xlim()
axes.set(ylim=(1.5, 2.7), xlim=(fastest / 4, slowest * 4))
display(figure)

# %% [markdown]
# The moments accountant has no advantage of speed over Renyi DP, which is tighter. Where a few
# hundredths of a second do not matter, nothing speaks against the exact one. (What is not in the
# picture: its first call in a process compiles, for some seconds.)
#
# ### As a run goes on

# %%
last_step = 1_000 if SMOKE else 10_000
axes = report.plot_epsilon(dp_sgd, last_step, DELTA, accountants=["moments", "rdp", "exact"])
display(axes.figure)

# %% [markdown]
# ### Inside a program
#
# An epsilon need not be computed one at a time, or on the host. On traced numbers the exact
# accountant and Renyi DP are JAX functions: here 64 runs at once by `vmap`, and the derivative of
# epsilon by the noise multiplier, by implicit differentiation.


# %%
def rdp_epsilon(noise_multiplier):
    return acc.epsilon(dp_sgd(1_000, noise_multiplier), DELTA, accountant="rdp")


noises = jnp.linspace(0.7, 3.0, 64)
at_once = jax.jit(jax.vmap(jax.value_and_grad(rdp_epsilon)))
(epsilons, slopes), duration = milliseconds(lambda: jax.block_until_ready(at_once(noises)), 5)
print(
    f"{len(noises)} runs and derivatives: {duration:.1f} ms, {duration / len(noises):.3f} ms each"
)
for noise, epsilon, slope in list(zip(noises, epsilons, slopes, strict=True))[::21]:
    by_difference = (rdp_epsilon(noise + 1e-3) - rdp_epsilon(noise - 1e-3)) / 2e-3
    print(f"noise {noise:.2f}: epsilon {epsilon:.4f}, d epsilon / d noise {slope:.4f}")
    # float32 inside the program, and second order in the difference.
    assert abs(slope - by_difference) < 0.01 * abs(slope)

# %% [markdown]
# ## Behind one epsilon
#
# $(2, 10^{-5})$ is one point of a curve. Three mechanisms with this very guarantee: one Gaussian
# release, one Laplace release, and DP-SGD with 1,000 steps. Their privacy profiles
# $\delta(\varepsilon)$ meet in that point and differ everywhere else.

# %%
laws = {
    "Gaussian": acc.Gaussian,
    "Laplace": acc.Laplace,
    "DP-SGD": lambda noise: dp_sgd(1_000, noise),
}
runs = {
    name: law(acc.calibrate(law, target_epsilon=2.0, delta=DELTA)) for name, law in laws.items()
}
axes = report.plot_privacy_profile(runs, np.linspace(0.0, 5.0, 6 if SMOKE else 61))
axes.axvline(2.0, color="#888888", linewidth=0.8)
display(axes.figure)
for name, calibrated in runs.items():
    at_two, at_four = (acc.delta(calibrated, epsilon=epsilon) for epsilon in (2.0, 4.0))
    print(f"{name:10} delta at epsilon 2: {at_two:.3g}, at 4: {at_four:.3g}")

# %% [markdown]
# DP-SGD sees the record rarely, and then learns much: it has the heavier tail. At epsilon 4 its
# delta is 30,000 times the Gaussian's. Laplace noise has no tail at all, and pays for it where
# epsilon is small.

# %%
times = acc.delta(runs["DP-SGD"], epsilon=4.0) / acc.delta(runs["Gaussian"], epsilon=4.0)
print(f"{times:.3g}")
assert abs(times / 30_000 - 1) < 0.1
assert acc.delta(runs["Laplace"], epsilon=4.0) == 0.0

# %% [markdown]
# What an attacker can do is a trade-off: an attack that decides whether a record was in has a
# false positive rate (type I error) and a miss rate (type II error). No attack can be below the
# curve; pure guessing is the diagonal.

# %%
in_picture = ["Gaussian"] if SMOKE else ["Gaussian", "DP-SGD"]
axes = report.plot_trade_off({name: runs[name] for name in in_picture})
# For one Laplace release the curve has a simple form.
loss = 1.0 / runs["Laplace"].noise_multiplier


def laplace_trade_off(type_i_error):
    if type_i_error < math.exp(-loss) / 2:
        return 1 - math.exp(loss) * type_i_error
    if type_i_error < 0.5:
        return math.exp(-loss) / (4 * type_i_error)
    return math.exp(-loss) * (1 - type_i_error)


errors = np.linspace(0.0, 1.0, 201)
axes.plot(errors, list(map(laplace_trade_off, errors)), ":", color="#D55E00", label="Laplace")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
display(axes.figure)
for error in (0.05, 0.2, 0.7):
    assert abs(acc.type_ii_error(runs["Laplace"], error) - laplace_trade_off(error)) < 1e-3

# %%
for name, calibrated in runs.items():
    missed = acc.type_ii_error(calibrated, 0.05)
    advantage = acc.attack_advantage(calibrated)
    print(
        f"{name:10} at 5 % false positives an attack misses {missed:.1%}; advantage {advantage:.1%}"
    )
advantages = {name: acc.attack_advantage(calibrated) for name, calibrated in runs.items()}
for name, stated in (("Laplace", 0.63), ("Gaussian", 0.20), ("DP-SGD", 0.17)):
    assert abs(advantages[name] - stated) < 5e-3

# %% [markdown]
# The same epsilon and delta; yet the best attack's advantage (true positives minus false
# positives) is 63 % on the Laplace release, 20 % on the Gaussian one and 17 % on DP-SGD.

# %% [markdown]
# ## Tiny deltas
#
# A delta should be far below one over the number of records; with a billion records, or where a
# guarantee has to add up over many releases, that is very small. Accountants that keep the
# privacy loss on a grid in floating point stop at some delta, and say infinity. The line integral
# has no such end.

# %%
exponents = [-2, -5, -9, -12] if SMOKE else [-2, -5, -9, -12, -14, -17, -20, -30, -50, -75, -100]
on_a_grid = PLDAccountant().compose(theirs)
lines = {"exact": [], "rdp": [], "dp_accounting, PLD": []}
for exponent in exponents:
    delta = 10.0**exponent
    lines["exact"].append(acc.epsilon(run, delta))
    lines["rdp"].append(acc.epsilon(run, delta, accountant="rdp"))
    lines["dp_accounting, PLD"].append(on_a_grid.get_epsilon(delta))
    print(
        f"delta {delta:6g}" + "".join(f"   {name} {line[-1]:.4f}" for name, line in lines.items())
    )
assert all(map(math.isfinite, lines["exact"]))
assert math.isinf(on_a_grid.get_epsilon(1e-15))

figure = Figure(figsize=(6.4, 3.8), layout="constrained")
axes = figure.add_subplot()
styles = zip(lines.items(), ("o-", "s--", "X:"), ("#000000", "#0072B2", "#D55E00"), strict=True)
for (name, values), dashes, colour in styles:
    axes.plot(exponents, values, dashes, color=colour, label=name)
axes.invert_xaxis()
axes.set(xlabel="log10 of delta", ylabel="epsilon")
axes.legend(frameon=False)
display(figure)

# %% [markdown]
# Renyi DP is 15 % above the truth at $\delta = 10^{-5}$, and 2 % at $10^{-100}$: it is a
# large-deviation bound, at its best where delta is tiny. The accountant on a grid is loose before
# it stops: at $10^{-14}$ it says 8.59 where 4.54 is true.

# %%
excess = {
    delta: above / true - 1
    for delta, above, true in zip(exponents, lines["rdp"], lines["exact"], strict=True)
}
print({f"1e{exponent}": f"{share:.1%}" for exponent, share in excess.items()})
assert abs(excess[-5] - 0.15) < 5e-3
if not SMOKE:
    assert abs(excess[-100] - 0.02) < 5e-3
    at = exponents.index(-14)
    assert abs(lines["dp_accounting, PLD"][at] - 8.59) < 5e-3
    assert abs(lines["exact"][at] - 4.54) < 5e-3

# %% [markdown]
# ## Which one, then
#
# | situation | accountant |
# |---|---|
# | Gaussian noise, sampled by Poisson or not, any mix of steps | `"exact"`, as `"auto"` does |
# | Laplace noise, randomised response, fixed-size samples, any mix | `"pld"`, as `"auto"` does |
# | in the inner loop of a program, a quick sweep | `"rdp"` |
# | comparing with a paper that used it | `"moments"` or `"rdp"` |
# | only what each of equal steps guarantees is known | `"optimal"` |
# | publishing an epsilon | never `clt_epsilon`: it is an approximation from below |
