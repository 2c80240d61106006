"""The comparison finds wrong output, and every skipped block says why."""

import re
import tomllib

import pytest
from pages import RUN, Block, blocks, check
from reader import REPOSITORY
from test_pages import PAGES

# A block may be skipped for these reasons only. CI has neither a network for large downloads nor a GPU, and tests the
# commands of a checkout elsewhere.
REASONS = ("network", "GPU", "checkout", "needs TensorFlow Serving")


def shown(language: str, text: str) -> Block:
    return Block(language, 1, text, {})


@pytest.mark.parametrize(
    ("language", "page", "printed"),
    [
        ("json", '{"a": [1.5]}', '{"a": [1.5001], "b": 2}'),
        ("text", "took 12 ms\n...\nend", "took 7.3 ms\nx\ny\nend\n"),
        ("text", "a   b\n-----", "a b\n---------"),
    ],
)
def test_equal_output_passes(language, page, printed):
    check(shown(language, page), printed)


@pytest.mark.parametrize(
    ("language", "page", "printed"),
    [
        ("json", '{"a": [1.5]}', '{"a": [1.6]}'),
        ("json", '{"a": 1}', '{"b": 1}'),
        ("json", '{"a": [1]}', '{"a": [1, 2]}'),
        ("text", "ready in 3 ms", "failed in 3 ms"),
        ("text", "one", "one\ntwo"),
    ],
)
def test_different_output_fails(language, page, printed):
    with pytest.raises(AssertionError):
        check(shown(language, page), printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_extras_are_extras_of_the_wheel(page):
    """No block with `pip install` is run, so a wrong extra would stay unseen."""
    project = tomllib.loads((REPOSITORY / "packaging/python/pyproject.toml").read_text())["project"]
    for named in re.findall(r"millpond\[([\w,]+)\]", page.read_text()):
        assert set(named.split(",")) <= project["optional-dependencies"].keys(), named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_skips_have_an_accepted_reason(page):
    for block in blocks(page):
        if "skip" in block.marks and block.language in RUN:
            assert any(reason in block.marks["skip"] for reason in REASONS), f"{page}:{block.line}"
