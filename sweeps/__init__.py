"""Many points of one scenario: studies are run here, on the processors of this computer or on a Dask cluster.

    study (scenarios/study.py) -> tasks -> pool or cluster -> records -> journal -> points.parquet

run       the whole way, and what `xs.sweep` gives back
task      what a worker is sent, what it computes, and what it sends back
loads     how evenly GPUs are loaded, a part of each result
digest    what makes two points the same: their scenario and the model's sources
journal   every record, durable; the truth that a sweep resumes from
table     the journal's records as a flat table
pool      worker processes (worker is their side; parent ends them with it)
cluster   a Dask cluster that exists already
batch     how many tasks are sent at a time
estimate  what a sweep will take
view      a picture of a sweep, and axes that made no difference
drawn     the rows of that picture: means over seeds, the smallest over axes that it does not hold
"""
