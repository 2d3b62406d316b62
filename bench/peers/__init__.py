"""Minimal proxies and an engine to measure against; each is a process of its own."""
