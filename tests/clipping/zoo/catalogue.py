"""All entries of the zoo by name."""

from tests.clipping.zoo import control_flow as control_flow
from tests.clipping.zoo import convolution as convolution
from tests.clipping.zoo import corners as corners
from tests.clipping.zoo import dense as dense
from tests.clipping.zoo import embedding as embedding
from tests.clipping.zoo import models as models
from tests.clipping.zoo import views as views
from tests.clipping.zoo.entry import ENTRIES as ENTRIES
from tests.clipping.zoo.entry import build as build
