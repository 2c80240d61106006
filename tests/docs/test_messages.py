"""Messages of docs/troubleshooting.md are those of the code."""

import functools
import re

import pytest
from reader import REPOSITORY

PAGE = REPOSITORY / "docs/troubleshooting.md"
# A heading in bold, or the first cell of the table of requests.
MESSAGE = re.compile(r"^(?:\*\*|\| )`([^`]+)`", re.MULTILINE)
# Values and names of examples, which the code fills in, and texts of the system and of engines.
FILLED = re.compile(
    r"\.\.\.|\d[\d.:]*|\"[^\"]*\"|\[[^\]]*\]|\b(?:FILE is|DIR|NAME|KEY|ONNX Runtime|Triton)\b|config\.pbtxt|/no/such"
    r"|Address already in use|No such file or directory|Connection refused"
    r"|Failed to construct locale with name:en_US\.UTF-8"
)
SHORTEST = 10


@functools.cache
def code() -> str:
    """Returns the sources, with literals that span lines joined."""
    texts = (path.read_text() for path in sorted((REPOSITORY / "crates").rglob("*.rs")))
    return re.sub(r"\s+", " ", re.sub(r"\\\n\s*", "", "\n".join(texts)))


@pytest.mark.parametrize("message", MESSAGE.findall(PAGE.read_text()))
def test_message_is_in_the_code(message):
    parts = [part.strip(" :;,(") for part in FILLED.split(message)]
    missing = [part for part in parts if len(part) >= SHORTEST and part not in code()]
    assert not missing, f"no source has {missing} of {message!r}"
