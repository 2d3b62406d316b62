"""Carries out what a wake machine commands, and writes down what must survive a kill."""
