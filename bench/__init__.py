"""What the front door costs, measured beside peers in one run: `bin/bench`."""
