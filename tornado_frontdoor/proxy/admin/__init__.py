"""What operators see and do: status, wake, sleep, access lines, metrics."""
