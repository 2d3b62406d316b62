"""The front door before self-hosted LLM engines.

Four rooms, whose imports only point down: `proxy` (all I/O) stands on `surfaces` (dialects) and
`config` (settings), which stand on `core` (every decision, no I/O). `docs/architecture.md` has the
picture.
"""

__version__ = "0.1.0"
