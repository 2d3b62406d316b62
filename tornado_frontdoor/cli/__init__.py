"""The command line: the only room that sees the proxy, the simulator and the stand-in engine."""
