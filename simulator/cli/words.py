"""What docopt cannot say: which option it does not know, and which was given twice."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)(?:[ =]([A-Z][A-Z:]*))?")


def faults_of(usage: str, argv: Sequence[str]) -> list[str]:
    """Return a line for each option of `argv` that is unknown, doubled or lacks its value."""
    known: dict[str, bool] = {}
    for name, value in _OPTION.findall(usage):
        known[name] = known.get(name, False) or bool(value)
    faults: list[str] = []
    seen: set[str] = set()
    words = iter(argv)
    for word in words:
        if word == "--":
            break
        if not word.startswith("--"):
            continue
        given, equals, _ = word.partition("=")
        names = [given] if given in known else [name for name in known if name.startswith(given)]
        if len(names) != 1:
            faults.append(_unknown(given, names, known))
            continue
        (name,) = names
        if name in seen:
            faults.append(f"{name}: given twice")
        seen.add(name)
        if known[name] and not equals and next(words, None) is None:
            faults.append(f"{name}: needs a value")
    return faults


def _unknown(given: str, names: Sequence[str], known: dict[str, bool]) -> str:
    if names:
        return f"{given}: may mean {' or '.join(names)}"
    near = get_close_matches(given, known, n=1)
    return f"{given}: there is no such option" + (f"; did you mean {near[0]}?" if near else "")
