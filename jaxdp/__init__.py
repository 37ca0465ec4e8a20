"""Differential privacy for JAX and Optax: clip, noise and budget as one compiled program."""

from jaxdp import accounting as accounting
from jaxdp import checkpoint as checkpoint
from jaxdp import clipping as clipping
from jaxdp import distributed as distributed
from jaxdp import federated as federated
from jaxdp import mechanisms as mechanisms
from jaxdp import noise as noise
from jaxdp import sampling as sampling
from jaxdp import sensitivity as sensitivity
from jaxdp import transforms as transforms
from jaxdp.clipping.api import clipped_grad as clipped_grad
from jaxdp.clipping.clipped_sum import ClippedSum as ClippedSum
from jaxdp.optimizers import dp_adam as dp_adam
from jaxdp.optimizers import dp_adamw as dp_adamw
from jaxdp.optimizers import dp_adamw_bc as dp_adamw_bc
from jaxdp.optimizers import dp_sgd as dp_sgd
from jaxdp.optimizers import privatize as privatize
from jaxdp.plan import PrivacyPlan as PrivacyPlan
from jaxdp.sampling.poisson import poisson_batch as poisson_batch
from jaxdp.training import make_private as make_private
from jaxdp.transforms.batch_size import scale_by_batch_size as scale_by_batch_size
from jaxdp.transforms.budget import privacy_spent as privacy_spent
from jaxdp.transforms.budget import with_budget as with_budget
from jaxdp.transforms.clip import clip_per_example as clip_per_example
from jaxdp.transforms.noise import add_gaussian_noise as add_gaussian_noise
from jaxdp.transforms.noise import add_laplace_noise as add_laplace_noise
