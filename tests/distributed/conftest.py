"""The partitioner that newer JAX has by default, for the oldest one as well."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _shardy():
    # A test may have changed it.
    jax.config.update("jax_use_shardy_partitioner", True)


@pytest.fixture(autouse=True, scope="module")
def _shardy_for_the_module_only():
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", True)
    yield
    jax.config.update("jax_use_shardy_partitioner", before)
