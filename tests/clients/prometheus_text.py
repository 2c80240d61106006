"""The part of the exposition format that the tests read."""

import re

SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Yields every sample: name, labels, value."""
    found = []
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        match = SAMPLE.match(line)
        assert match, f"no sample: {line}"
        found.append((match["name"], dict(LABEL.findall(match["labels"] or "")), float(match["value"])))
    return found
