"""Every code block of the README and of the start pages works as shown."""

import pathlib

import pytest
from pages import blocks
from reader import REPOSITORY, Reader

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs/start").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_work_as_shown(page: pathlib.Path, tmp_path: pathlib.Path):
    reader = Reader(tmp_path)
    try:
        for block in blocks(page):
            try:
                reader.read(block)
            except Exception as error:
                raise AssertionError(f"{page.relative_to(REPOSITORY)}:{block.line}\n{block.text}\n{error}") from error
    finally:
        if reader.server is not None and reader.server.poll() is not None:
            reader.server = None
        reader.stop()
