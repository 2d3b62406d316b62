"""Locust scenarios. They import nothing of ours: what they know, they learned over HTTP."""
