"""The kinds of value a setting can have: each reads a TOML value, or says what it must be.

marshmallow's own fields turn `"6"`, `true` and `nan` into numbers and `"yes"` into a flag; these
take a value of the right TOML type or none. `kind` is the sentence for it, in messages and in
docs/configuration.md alike.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from marshmallow import ValidationError, fields

from tornado_frontdoor.config.address import Address, normalised_url, parse_address
from tornado_frontdoor.config.faults import did_you_mean, shown
from tornado_frontdoor.config.redis_url import checked_redis_url
from tornado_frontdoor.core.catalog import is_glob
from tornado_frontdoor.engines import kinds

REQUIRED = "is required and has no default"
YEAR_S = 31_536_000
TEXT_LENGTH_MAX = 1000


JsonSchema = dict[str, Any]


class Value(fields.Field[Any]):
    """A value of the file. `accept` returns what the settings hold, or None when it is unfit."""

    kind = "a value"

    def __init__(self, *, required: bool = False) -> None:
        super().__init__(required=required, error_messages={"required": REQUIRED})

    def accept(self, value: object) -> object:
        """Return the setting for a TOML value; None refuses it, ValueError says why it does."""
        raise NotImplementedError

    def json_schema(self) -> JsonSchema:
        """Return what an editor can tell of a value: never more than `accept` refuses."""
        return {}

    def _deserialize(
        self,
        value: object,
        attr: str | None,  # noqa: ARG002
        data: Mapping[str, Any] | None,  # noqa: ARG002
        **_: object,
    ) -> object:
        try:
            accepted = self.accept(value)
        except ValueError as error:
            raise ValidationError(str(error)) from error
        if accepted is None:
            raise ValidationError(f"must be {self.kind}, not {shown(value)}{self.hint(value)}")
        return accepted

    def hint(self, value: object) -> str:  # noqa: ARG002
        """Return what may have been meant, after a semicolon, or nothing."""
        return ""


class Number(Value):
    """A finite number. `above` and `least` are its lower bound, without and with the bound."""

    def __init__(
        self,
        *,
        above: float | None = None,
        least: float | None = None,
        most: float,
        required: bool = False,
    ) -> None:
        super().__init__(required=required)
        self._fits: Callable[[float], bool]
        self._bounds: JsonSchema = {"maximum": most}
        if above is not None:
            self._bounds["exclusiveMinimum"] = above
            self._fits = lambda number: above < number <= most
            self.kind = f"a number above {above:g} and at most {_plain(most)}"
        else:
            lowest = least or 0
            self._bounds["minimum"] = lowest
            self._fits = lambda number: lowest <= number <= most
            self.kind = f"a number from {_plain(lowest)} to {_plain(most)}"

    def accept(self, value: object) -> object:
        """Refuse flags, texts, NaN and what is out of range; integers stay integers."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if self._fits(value) else None  # NaN fits nowhere, and bounds are finite

    def json_schema(self) -> JsonSchema:
        """Return the range."""
        return {"type": "number", **self._bounds}


class Whole(Value):
    """A whole number, both bounds included."""

    def __init__(self, least: int, most: int, *, required: bool = False) -> None:
        super().__init__(required=required)
        self._least = least
        self._most = most
        self.kind = f"a whole number from {least} to {most}"

    def accept(self, value: object) -> object:
        """Refuse flags, fractions and what is out of range."""
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if self._least <= value <= self._most else None

    def json_schema(self) -> JsonSchema:
        """Return the range."""
        return {"type": "integer", "minimum": self._least, "maximum": self._most}


def _either(options: Sequence[str | int]) -> str:
    *others, last = [shown(option) for option in options]
    return f"{', '.join(others)} or {last}" if others else last


class Network(Value):
    """An address, or a range of them."""

    kind = "an address or a range of them, such as 10.0.0.0/8"

    def accept(self, value: object) -> object:
        """Take what `ipaddress` reads without bits beyond the range."""
        try:
            return ip_network(value) if isinstance(value, str) else None
        except ValueError:
            return None


class Flag(Value):
    """A TOML boolean and nothing that only looks like one."""

    kind = "true or false"

    def accept(self, value: object) -> object:
        """Take booleans only."""
        return value if isinstance(value, bool) else None

    def json_schema(self) -> JsonSchema:
        """Return the type."""
        return {"type": "boolean"}


class ChoiceField(Value):
    """One of a few values, spelt exactly."""

    def __init__(self, *options: str | int) -> None:
        super().__init__()
        self._options = options
        self.kind = _either(options)

    def accept(self, value: object) -> object:
        """Take an option of the same type."""
        for option in self._options:
            if type(value) is type(option) and value == option:
                return option
        return None

    def json_schema(self) -> JsonSchema:
        """Return the options."""
        return {"enum": list(self._options)}

    def hint(self, value: object) -> str:
        """Point at the option that is spelt almost alike."""
        if not isinstance(value, str):
            return ""
        return did_you_mean(value, [option for option in self._options if isinstance(option, str)])


class EngineName(ChoiceField):
    """A kind of engine; which there are is told by the folder of their modules."""

    def __init__(self) -> None:
        super().__init__(*kinds())

    def accept(self, value: object) -> object:
        """Take the name of a kind that is there now."""
        self._options = tuple(kinds())
        self.kind = _either(self._options)
        return super().accept(value)


class Text(Value):
    """A text without control characters and without blanks around it."""

    kind = "a text"

    def accept(self, value: object) -> object:
        """Refuse what is not a text or would not be seen whole in a log."""
        if not isinstance(value, str):
            return None
        if not 1 <= len(value) <= TEXT_LENGTH_MAX:
            raise ValueError(f"must have 1 to {TEXT_LENGTH_MAX} characters, not {len(value)}")
        if not value.isprintable() or value != value.strip():
            raise ValueError(f"must have no control characters or outer blanks, not {shown(value)}")
        return value

    def json_schema(self) -> JsonSchema:
        """Return the length; what else a text must be is for `frontdoor check` to say."""
        return {"type": "string", "minLength": 1, "maxLength": TEXT_LENGTH_MAX}


class ListenAddress(Text):
    """An address to bind."""

    kind = "a text of the form HOST:PORT or [IPV6]:PORT"

    def accept(self, value: object) -> Address | None:
        """Read the address; the port may be 0."""
        text = super().accept(value)
        return parse_address(text) if isinstance(text, str) else None


class OriginUrl(Text):
    """The address of an upstream."""

    kind = "a text of the form http://HOST:PORT or https://HOST:PORT"

    def accept(self, value: object) -> str | None:
        """Read the URL and return it normalised."""
        text = super().accept(value)
        return normalised_url(text) if isinstance(text, str) else None


class RedisUrl(Text):
    """The address of a Redis."""

    kind = "a text of the form redis://HOST:PORT/DATABASE, rediss://… or unix://PATH"

    def accept(self, value: object) -> str | None:
        """Take what means to redis-py what it says."""
        return checked_redis_url(value) if isinstance(value, str) else None


class HttpUrl(Text):
    """An address of something that is no engine; it may have a path."""

    kind = "a text of the form http://HOST:PORT/PATH or https://HOST:PORT/PATH"

    def accept(self, value: object) -> str | None:
        """Take what a request can be sent to."""
        text = super().accept(value)
        fits = isinstance(text, str) and re.fullmatch(r"https?://[!-~]+", text)
        return str(text) if fits else None


class Argument(Value):
    """One argument of a command: passed on as it is, no shell reads it."""

    kind = "a text without a zero character, not empty"

    def accept(self, value: object) -> object:
        """Take what a process can be given."""
        return value if isinstance(value, str) and value and "\0" not in value else None


class EnginePath(Text):
    """A path at an engine."""

    kind = "a path that begins with /, of printable ASCII without blanks"

    def accept(self, value: object) -> object:
        """Take what can stand in a request line."""
        fits = isinstance(value, str) and re.fullmatch(r"/[!-~]*", value)
        return value if fits else None


class FilePath(Text):
    """A path; a relative one starts at the folder of the configuration file."""

    kind = "a path"

    def accept(self, value: object) -> Path | None:
        """Take the path as written."""
        text = super().accept(value)
        if not isinstance(text, str):
            return None
        if text.startswith("~"):
            raise ValueError("must be written out: ~ is not expanded")
        return Path(text)


class Sha256(Text):
    """The hash of a client's key."""

    kind = "64 hexadecimal digits, as `frontdoor key new` prints them"
    _pattern = re.compile(r"[0-9a-f]{64}")

    def accept(self, value: object) -> str | None:
        """Take digits of either case."""
        folded = value.lower() if isinstance(value, str) else ""
        return folded if self._pattern.fullmatch(folded) else None


class WebOrigin(Text):
    """Where a web page comes from."""

    kind = "an origin as browsers send it, or a star for all"
    _pattern = re.compile(
        r"\*|https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?"
    )

    def accept(self, value: object) -> str | None:
        """Take scheme, host and port, as browsers send them."""
        folded = value.lower() if isinstance(value, str) else ""
        return folded if self._pattern.fullmatch(folded) else None


class UpstreamName(Text):
    """The name of an `[upstreams.X]` table: it goes into metrics, headers and admin paths."""

    kind = "1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit"
    _pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

    def accept(self, value: object) -> str | None:
        """Take names that need no quoting anywhere."""
        return value if isinstance(value, str) and self._pattern.fullmatch(value) else None

    def json_schema(self) -> JsonSchema:
        """Return the pattern."""
        return {"type": "string", "pattern": f"^{self._pattern.pattern}$"}


class ModelName(Text):
    """The name of a `[models.X]` table."""

    def accept(self, value: object) -> object:
        """Take exact names only."""
        text = super().accept(value)
        if isinstance(text, str) and is_glob(text):
            raise ValueError("must be an exact name: patterns with *, ? or [ go into aliases")
        return text


class Items(fields.List[Any]):
    """A TOML list of one kind of value; the settings hold it as a tuple."""

    def __init__(
        self, item: Value, *, least: int = 0, distinct: bool = False, required: bool = False
    ) -> None:
        super().__init__(item, required=required, error_messages={"required": REQUIRED})
        self._item = item
        self._least = least
        self._distinct = distinct
        self.kind = "a list, each item " + item.kind

    def _deserialize(  # type: ignore[override]  # a tuple for a list: settings are frozen
        self, value: object, attr: str | None, data: Mapping[str, Any] | None, **kwargs: object
    ) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValidationError(f"must be {self.kind}, not {shown(value)}")
        items = super()._deserialize(value, attr, data, **kwargs)
        if len(items) < self._least:
            raise ValidationError(f"must have at least {self._least} item")
        if self._distinct and len(set(items)) < len(items):
            raise ValidationError("must not name an item twice")
        return tuple(items)

    def json_schema(self) -> JsonSchema:
        """Return what an item may be, and how many there are."""
        return {
            "type": "array",
            "items": self._item.json_schema(),
            "minItems": self._least,
            "uniqueItems": self._distinct,
        }


class Words(fields.Dict):
    """A TOML table from text to text."""

    kind = "a table from text to text"

    def __init__(self) -> None:
        super().__init__(keys=Text(), values=Text(), error_messages={"invalid": NOT_A_TABLE})

    def json_schema(self) -> JsonSchema:
        """Return that its values are texts."""
        return {"type": "object", "additionalProperties": Text().json_schema()}


NOT_A_TABLE: Literal["must be a table"] = "must be a table"


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
