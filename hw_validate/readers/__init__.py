"""Traces that other profilers wrote, as op tables with the columns of `Trace.ops()`."""
