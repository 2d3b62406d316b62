"""The simulator's commands: options in, exit code out."""
