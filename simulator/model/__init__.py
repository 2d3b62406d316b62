"""One simulated run: the real gate, an engine model behind it, in simulated time."""
