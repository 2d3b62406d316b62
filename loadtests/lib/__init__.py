"""What locustfiles share: when requests come, what they ask, what is written down of them."""
