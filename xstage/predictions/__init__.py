"""Published times predicted row by row and judged: `published`, and `fit_machine` for the numbers of a machine file."""
