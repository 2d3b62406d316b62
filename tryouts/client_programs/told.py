"""What every program here has in common: one action, one line of JSON that says what came of it."""

import json
import sys
from collections.abc import Callable
from typing import Any

TOOL = {
    "name": "weather",
    "description": "Tell the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
SHAPE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
Action = Callable[[str, str, str], dict[str, Any]]
"""`action(address, model, prompt)`; keys of its result are said, pieces, call, value, usage."""


def run(*actions: Action) -> None:
    """Do the action that the command line names; what it raises is told like an answer."""
    name, address, model, prompt = sys.argv[1:5]
    try:
        told = {action.__name__: action for action in actions}[name](address, model, prompt)
    except Exception as error:  # noqa: BLE001 - whatever a client raises is what is to be seen
        status = getattr(error, "status_code", None) or getattr(error, "status", None)
        told = {"error": f"{type(error).__name__}: {error}"[:500], "status": status}
    print(json.dumps(told), flush=True)
