"""Dialects towards engines: what a kind of engine is asked, and how its answers are read. Pure."""
