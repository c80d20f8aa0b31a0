"""What if the links were slower, the stage larger, or the topology different? Replace values, or sweep them.

python docs/examples/05_what_if.py
"""

import xstage as xs

for rate in ("358 GB/s", "717 GB/s", "1434 GB/s"):
    run = xs.run("periodic-train", overrides={"machine.interconnect.drain_rate": rate})
    print(f"R = {rate:9}  makespan {run.makespan_us:7.1f} us")

# The same as a study: every point of a grid. A study can use all processors, and resumes if it was interrupted.
study = {
    "question": "How long do bursts take to issue?",
    "scenario": "isolated-burst",
    "axes": {"workload.burst": ["16 KiB", "32 KiB", "48 KiB"], "workload.producers": [74, 148]},
}
swept = xs.sweep(study, "out/isolated", workers=1)
table = swept.frame.pivot(index="workload.burst_bytes", columns="workload.producers", values="spans.burst.median_us")
print(table.round(3).to_string())
