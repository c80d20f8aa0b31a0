"""The tables of the interpreter for NumPy: the structs of kernels/lane_tables.cuh, field by field, and its limits."""

from __future__ import annotations

import numpy as np

OP = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("n_shares", "u2"),
        ("counter", "i4"),
        ("count", "i4"),
        ("target", "u4"),
        ("bytes", "u4"),
        ("home", "u4"),
        ("ticks", "u8"),
    ],
    align=True,
)
SHARE = np.dtype([("gpu", "u4"), ("bytes", "u4")])
ENTRY = np.dtype(
    [
        ("task", "u4"),
        ("first_run", "u4"),
        ("guard_counter", "i4", 2),
        ("guard_count", "i4", 2),
        ("guard_is_system_wide", "u4"),
        ("padding", "u4"),
    ]
)
RUN = np.dtype([("first_op", "u4"), ("n_ops", "u4")])
QUEUE = np.dtype([("first", "u4"), ("n_entries", "u4"), ("is_shared", "u4"), ("cursor", "u4")])
STEP = np.dtype([("queue", "i4"), ("otherwise", "i4"), ("times", "u4"), ("padding", "u4")])
GROUP = np.dtype(
    [(name, "u4") for name in ("gpu", "first_step", "n_prefix", "n_repeat", "ahead", "n_lanes", "n_slots")]
    + [(name, "u4") for name in ("first_word", "is_in_shared", "first_taken")]
)
LANE = np.dtype(
    [(name, "u4") for name in ("number", "group", "seat", "window", "first_warp", "n_warps")]
    + [(name, "u8") for name in ("store_first", "load_first", "start_ticks")],
    align=True,
)
CTA = np.dtype([(name, "u4") for name in ("gpu", "first_lane", "n_lanes", "first_word", "n_words", "log_records")])

SYSTEM_WIDE, OWN_LOADS, ADDS = 1, 2, 4
"""Flags of an op; see lane_tables.cuh."""

WARP, MOST_WARPS, MOST_LANES, MOST_LOADS, MOST_SHARES = 32, 24, 15, 16, 32
LANE_BLOCK_BYTES, RECORD_BYTES, EDGE_BYTES = 2736, 20, 16
GROUP_WORDS = 4
"""Words of a group before those of its lanes: lock, number taken, step, visits."""
