"""Pictures, privacy statements and progress bars: what people read about a private run.

Pictures need the extra ``plots`` (matplotlib), which is imported when the first one is drawn.
Each ``plot_*`` returns the Matplotlib ``Axes``; ``axes.figure.savefig("epsilon.pdf")`` writes it.
"""

from jaxdp.report.chunked_scan import scan as scan
from jaxdp.report.describe import describe as describe
from jaxdp.report.epsilon_plot import plot_epsilon as plot_epsilon
from jaxdp.report.norms_plot import plot_norms as plot_norms
from jaxdp.report.profile_plot import plot_privacy_profile as plot_privacy_profile
from jaxdp.report.progress import progress as progress
from jaxdp.report.statement import Statement as Statement
from jaxdp.report.trade_off_plot import plot_trade_off as plot_trade_off
from jaxdp.report.utility_plot import plot_utility as plot_utility
