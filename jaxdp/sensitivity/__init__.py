"""Sensitivity: what one record can move a query by, claimed and put to the test."""

from jaxdp.sensitivity.elementary import Sensitivity as Sensitivity
from jaxdp.sensitivity.elementary import bounded_mean as bounded_mean
from jaxdp.sensitivity.elementary import bounded_sum as bounded_sum
from jaxdp.sensitivity.elementary import count as count
from jaxdp.sensitivity.elementary import histogram as histogram
from jaxdp.sensitivity.falsifier import Falsification as Falsification
from jaxdp.sensitivity.falsifier import falsify as falsify
from jaxdp.sensitivity.neighbours import Neighbours as Neighbours
from jaxdp.sensitivity.neighbours import neighbours_in_box as neighbours_in_box
