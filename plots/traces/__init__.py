"""Traces for other viewers: Perfetto TrackEvent, Kineto-shaped JSON, Parquet."""
