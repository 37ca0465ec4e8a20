"""What to say about a delta that is too large to mean much."""

# Few data sets are so small that a larger delta is well below one over their size.
_LARGE = 1e-3


def of_delta(delta: float, num_units: int | None, units: str) -> str | None:
    """A caution about a delta, or None where there is no reason for one.

    To publish one unit's data, picked at random, is (0, 1 / number of units)-private: a delta
    from there on allows it.

    Args:
      delta: Of the guarantee, in [0, 1).
      num_units: How many examples, or clients, there are; None if that is not known.
      units: What they are called, "examples" or "clients".

    Returns:
      A sentence without a full stop, or None.
    """
    if num_units is not None and delta * num_units >= 1.0:
        return (
            f"delta is NOT SMALL: at least one over the number of {units}, {num_units}; "
            "to publish one of them, picked at random, would meet the same guarantee"
        )
    if delta > _LARGE:
        return f"delta is large: it should be well below one over the number of {units}"
    return None
