"""Two orders of the same tiles: which is faster, and why?

python docs/examples/03_compare_and_explain.py
"""

import xstage as xs

SMALL = {"workload.tokens": 2048}

compared = xs.compare("megamoe-flash-wave", ["expert_wave", "interleaved"], overrides=SMALL)
wave, interleaved = compared.rows()
print(f"interleaved is {interleaved['speedup']:.3f} times as fast as {compared.baseline}")
print(f"stall of all stores: {wave['stall_total_us']:.0f} us and {interleaved['stall_total_us']:.0f} us")

# Remove one limit after another: each bar is what one step saves, and the bars add up to the makespan.
explained = xs.explain("megamoe-flash-wave", overrides=SMALL)
assert abs(explained.frame["us"].sum() - wave["makespan_us"]) < 1e-6
print(explained.frame[["cause", "us"]].round(1).to_string(index=False))
