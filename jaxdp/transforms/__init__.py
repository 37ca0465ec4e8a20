"""The links of a private Optax chain."""

from jaxdp.transforms.adam_bc import scale_by_adam_bc as scale_by_adam_bc
from jaxdp.transforms.adaptive_clip import AdaptiveClipState as AdaptiveClipState
from jaxdp.transforms.adaptive_clip import adaptive_clip_norm as adaptive_clip_norm
from jaxdp.transforms.adaptive_clip import clip_norm as clip_norm
from jaxdp.transforms.batch_size import scale_by_batch_size as scale_by_batch_size
from jaxdp.transforms.budget import BudgetState as BudgetState
from jaxdp.transforms.budget import privacy_spent as privacy_spent
from jaxdp.transforms.budget import with_budget as with_budget
from jaxdp.transforms.clip import clip_per_example as clip_per_example
from jaxdp.transforms.noise import GaussianNoiseState as GaussianNoiseState
from jaxdp.transforms.noise import LaplaceNoiseState as LaplaceNoiseState
from jaxdp.transforms.noise import add_gaussian_noise as add_gaussian_noise
from jaxdp.transforms.noise import add_laplace_noise as add_laplace_noise
from jaxdp.transforms.quantile_count import count_within as count_within
from jaxdp.transforms.quantile_count import split_noise_multiplier as split_noise_multiplier
