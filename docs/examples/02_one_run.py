"""Run a scenario and look at what happened: numbers, tables, a figure, a trace for Perfetto.

python docs/examples/02_one_run.py
"""

from pathlib import Path

import xstage as xs

run = xs.run("synchronised-train", trace="full")
print(f"makespan {run.makespan_us:.3f} us, stall {run.metrics['stall_total_us']:.1f} us summed over lanes")

# Every table is a DataFrame: spans (tasks), ops, granules, lanes, ports, occupancy.
spans = run.trace.spans()
print(spans[spans["phase"] == "burst"].groupby("m_block")["span_us"].max().round(3).head(3).to_string())
print(f"the stage of GPU 0 holds up to {run.trace.occupancy(gpu=0)['held_bytes'].max()} bytes")

# In a notebook `run` displays itself, and run.plot() is a figure. A trace opens in https://ui.perfetto.dev.
Path("out").mkdir(exist_ok=True)
run.plot().savefig("out/train.png")
xs.write_trace(run.trace, "out/train.pftrace")
