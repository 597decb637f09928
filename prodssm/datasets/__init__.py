"""Data sets of the experiments, one module each: `load` or `simulate`, with source, units, licence and checksum.

Nothing is shipped with the library. `locate.find` looks for a file on this machine and fetches it from its public source.
"""

from prodssm.datasets import kink as kink
from prodssm.datasets import mocap as mocap
from prodssm.datasets import sysid as sysid
from prodssm.datasets import tanks as tanks
from prodssm.datasets import uci as uci
from prodssm.datasets.locate import find as find
