"""Exact answers from theory, and the simulator held against them."""
