"""Measured times of fused kernels as others published them, and one way to read further tables of the same kind.

    megamoe.csv        MegaMoE and the pipelines it replaces
    attention_tp.csv   attention, Ulysses All-to-All, GEMMs with tensor-parallel communication
    links.csv          link rates and latencies, for checking machine files
    x_stage_*.csv      tiles and speedups of the X-Stage paper, read by scenarios/x_stage.py
    dropped.csv        rows that were found and are in no table, with the reason
    SOURCES.md         who measured what, generated from sources.csv

The tables hold what clean.py makes of the rows as they were written down, with variants.csv, gpus.csv, rules.yaml and
fit.csv. `load_like` does the same to a table of one's own, so both are judged alike. schema.py says what each column means.
"""

from .load import load_like, load_links, load_published
from .schema import Kind

__all__ = ["Kind", "load_like", "load_links", "load_published"]
