"""The shell that does: sockets, timers, signals, logs. It decides nothing that `core` could."""
