"""Accounting: what a run of private releases costs, on the host or inside a program."""

from jaxdp.accounting.calibration import affordable_steps as affordable_steps
from jaxdp.accounting.calibration import calibrate as calibrate
from jaxdp.accounting.conversion import RdpEpsilon as RdpEpsilon
from jaxdp.accounting.conversion import epsilon_from_rdp as epsilon_from_rdp
from jaxdp.accounting.events import Composed as Composed
from jaxdp.accounting.events import DiscreteGaussian as DiscreteGaussian
from jaxdp.accounting.events import Event as Event
from jaxdp.accounting.events import Gaussian as Gaussian
from jaxdp.accounting.events import Laplace as Laplace
from jaxdp.accounting.events import PoissonSampled as PoissonSampled
from jaxdp.accounting.events import RandomizedResponse as RandomizedResponse
from jaxdp.accounting.events import Repeated as Repeated
from jaxdp.accounting.events import SampledWithoutReplacement as SampledWithoutReplacement
from jaxdp.accounting.events import Schedule as Schedule
from jaxdp.accounting.events import TruncatedPoissonSampled as TruncatedPoissonSampled
from jaxdp.accounting.guarantee import delta as delta
from jaxdp.accounting.guarantee import epsilon as epsilon
from jaxdp.accounting.guarantee import rdp_epsilon as rdp_epsilon
from jaxdp.accounting.renyi import rdp as rdp
