"""HTTP/1.1 towards clients: bodies bounded, answers framed, leaving noticed."""
