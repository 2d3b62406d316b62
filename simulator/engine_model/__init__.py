"""The batch model of an engine, which the simulated runs and the stand-in share."""
