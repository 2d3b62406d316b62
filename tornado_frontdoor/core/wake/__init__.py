"""One engine's sleep: one machine holds all of its state, everything else here is values."""
