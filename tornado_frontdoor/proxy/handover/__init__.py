"""Hand-over of a running front door to the process that takes its place; it refuses nobody."""
