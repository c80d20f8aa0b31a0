"""Does a burst of stores fit the stage of a machine? The closed forms answer this for one burst or for a million.

python docs/examples/01_does_it_fit.py
"""

import numpy as np
from xstage.sim import burst_gap

import xstage as xs

KIB = 2**10
PRODUCERS = 148

# One burst: 32 KiB from every SM, then 4 us of computation.
answer = xs.audit("hgx-b200", producers=PRODUCERS, burst="32 KiB", gap="4 us")
print(answer.reason)

# Many at once: the functions take and return arrays. How large may a burst be, for gaps of 0 to 8 us?
stage = xs.load_machine("hgx-b200").x_stage()
gaps_us = np.arange(0.0, 9.0, 2.0)
largest = burst_gap.knee(stage, PRODUCERS, gaps_us * 1e6, mode="free_running")
for gap, size in zip(gaps_us, largest, strict=True):
    print(f"a gap of {gap:.0f} us allows bursts of {size / KIB:5.1f} KiB in the long run")

# The inverse: which drain rate would the next machine need, so that this burst never waits?
rate = burst_gap.required_drain_rate(stage, PRODUCERS, 32 * KIB, 4e6)
print(f"no stall from R = {rate / 1e6:.0f} GB/s on")
