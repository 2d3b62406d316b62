"""The dialects: bytes to canonical requests, decisions to bytes. No I/O."""
