"""The other driver of `tornado_frontdoor.core`: the same machines, in simulated time."""
