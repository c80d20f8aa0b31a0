"""Two runs, traces or sweeps side by side, simulated or measured: `diff` and `beside`."""
