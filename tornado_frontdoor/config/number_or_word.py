"""A field that takes a number, or one word that stands for it."""

from typing import Any

from tornado_frontdoor.config.fields import JsonSchema, Number


class NumberOr(Number):
    """A number, or one word that stands for it."""

    def __init__(self, word: str, **bounds: Any) -> None:
        super().__init__(**bounds)
        self._word = word
        self.kind = f'{self.kind}, or "{word}"'

    def accept(self, value: object) -> object:
        """Take the word, or a number in range."""
        return value if value == self._word else super().accept(value)

    def json_schema(self) -> JsonSchema:
        """Return both."""
        return {"anyOf": [super().json_schema(), {"enum": [self._word]}]}
