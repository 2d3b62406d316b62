"""The machines that decide: admission, waking, naming. No I/O, no clock, no dice of its own."""
