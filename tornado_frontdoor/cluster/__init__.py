"""Several front doors, one gate for each upstream: who owns the gates, and how others ask. Pure."""
