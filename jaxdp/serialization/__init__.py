"""Plans and accounting histories as JSON with a version, for files, papers and other programs."""

from jaxdp.serialization.document import dumps as dumps
from jaxdp.serialization.document import loads as loads
