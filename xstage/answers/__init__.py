"""What the public functions return: an answer with its tables, its figure (`.plot()`), its text and its JSON."""
