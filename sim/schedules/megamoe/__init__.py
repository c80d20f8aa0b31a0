"""MegaMoE: expert-parallel dispatch, two GEMMs and combine in one kernel, as a Program.

shape.py       what is computed, and the policies
rules.py, rules_sm90.py   what the public kernels choose for themselves
kernel.py      tiles and clusters of the kernel that runs it; grouped_gemm.py what is special where kernels are separate
blocks.py      the m-blocks of a rank
order.py       the order of tiles under each policy, and its ring
tiles.py       tile tasks, and how groups take them; links.py the counters that hold them together
pull.py, returns.py, unfused.py   what moves rows
collective.py, combine.py, flags.py   barriers, and what follows the last one
size.py        how many ops that will be
build.py       all of it together
memory.py      bytes of HBM and of the L2 cache of a call
departure.py   how far the order that ran departs from the nominal one
in_place.py    the same call with nothing that travels
l2_tiles.py    spans and stalls of L2 tiles, as an instrumented kernel measures them

Source: the public kernels of https://github.com/deepseek-ai/DeepGEMM; see rules.py and rules_sm90.py for their choices.
"""

from .build import are_alike as are_alike
from .build import build as build
from .departure import hits_as_run_pct as hits_as_run_pct
from .l2_tiles import L2Tiles as L2Tiles
from .l2_tiles import l2_tiles as l2_tiles
from .order import ring_of_lead as ring_of_lead
from .shape import POLICIES as POLICIES
from .shape import Alternating as Alternating
from .shape import ExpertWave as ExpertWave
from .shape import Interleaved as Interleaved
from .shape import Lag as Lag
from .shape import MegaMoe as MegaMoe
from .shape import Policy as Policy
from .shape import Split as Split
from .shape import Unfused as Unfused
from .size import check_size as check_size
