"""Experiments of the X-Stage paper repeated in simulation: speedups by call, the row lead D, and times of L2 tiles."""
