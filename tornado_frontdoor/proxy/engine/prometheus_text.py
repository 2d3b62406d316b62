"""An engine's gauges, read from Prometheus' text format: those that are wanted, and no others.

An engine shows thousands of lines, of which a handful matter; only these are parsed, each by
itself, so that a line which is none costs no other.
"""

from collections.abc import Collection, Iterator

from prometheus_client.parser import text_string_to_metric_families

from tornado_frontdoor.engines.base import Sample


def read_samples(text: bytes, names: Collection[str]) -> list[Sample]:
    """Return the samples of those names, in the order of the text."""
    return [
        Sample(sample.name, sample.labels, float(sample.value))
        for line in text.decode("utf-8", "replace").splitlines()
        if line.startswith(tuple(names))
        for sample in _parse(line)
        if sample.name in names
    ]


def _parse(line: str) -> Iterator[Sample]:
    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                yield Sample(sample.name, sample.labels, sample.value)
    except ValueError:
        return
