"""Results for people, for scripts and as pictures."""
