"""HTML pages of answers, validations, traces and sweeps: `report`."""
