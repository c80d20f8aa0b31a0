"""Which policy, which setting, and how certain is the saving?

python docs/examples/04_what_to_change.py
"""

import xstage as xs

# The machine file has no interval for R. Give that of your own measurement: it then counts in the saving's interval.
measured = {"value": "717 GB/s", "interval": ["680 GB/s", "730 GB/s"], "source": "an example"}
overrides = {"workload.tokens": 2048, "machine.interconnect.drain_rate": measured}
tuned = xs.tune("megamoe-flash-wave", ["interleaved"], most_runs=12, overrides=overrides)
low, high = tuned.saving_interval_pct
print(f"{tuned.best.policy} saves {tuned.saving_pct:.1f} %, {low:.1f} to {high:.1f} % within intervals and over seeds")
print(*tuned.changes, sep="\n")
print(f"the smallest lead within 1 % of the best: D_knee = {tuned.d_knee} rows")
