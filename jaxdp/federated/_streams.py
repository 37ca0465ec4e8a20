"""The random streams of a federated run, each from a root of its own below one key."""

import jax

# Without roots of their own the streams would meet keys that the caller has split from the
# same parent, split(key, n)[i] being fold_in(key, i).
COHORT, CLIENT, SERVER, LOCAL_NOISE = 0x6A78_6711, 0x6A78_6712, 0x6A78_6713, 0x6A78_6714


def of_round(key: jax.Array, root: int, round_number: jax.Array) -> jax.Array:
    """The key of one stream in one round: a function of the run's key and the round alone."""
    return jax.random.fold_in(jax.random.fold_in(key, root), round_number)


def of_client(round_key: jax.Array, client_id: jax.Array) -> jax.Array:
    """The key of one client in one round, whatever its place in the cohort."""
    return jax.random.fold_in(round_key, client_id)
