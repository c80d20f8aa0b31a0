"""HTML pages of answers, traces and sweeps: `report`."""
