"""Code blocks of a Markdown page, and the comparison of what a block prints with what the page shows.

Marks are comments in the lines above a block. Readers do not see them:

    <!-- test: skip: REASON -->      the block is not run (installs from the network, a GPU)
    <!-- test: file: PATH -->        the block is written to PATH in the page's directory
    <!-- test: exit: CODE -->        the block ends with this exit code
    <!-- test: setup                 lines of bash that run before the block that follows
    ... -->

`bash` and `python` blocks are run. A `text` or `json` block after one is what it prints.
"""

import dataclasses
import json
import math
import pathlib
import re

RUN = {"bash", "python"}
OUTPUT = {"text", "json"}
# Shown only, such as a part of a settings file.
SHOWN = {"toml", "yaml", "ini", "diff", "protobuf", "nginx"}
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\s*$")
MARK = re.compile(r"^\s*<!-- test: (?P<name>skip|file|exit|setup)(?:: (?P<value>.*?))?(?P<end> -->)?\s*$")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclasses.dataclass
class Block:
    language: str
    line: int
    text: str
    marks: dict[str, str]
    output: "Block | None" = None


def blocks(page: pathlib.Path) -> list[Block]:
    """Returns a page's blocks in order, hidden setup included."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = enumerate(page.read_text().splitlines(), start=1)
    for number, line in lines:
        if mark := MARK.match(line):
            if mark["name"] == "setup":
                found.append(Block("bash", number, _until(lines, "-->"), {}))
            else:
                assert mark["end"] and mark["value"], f"{page}:{number}: a mark is `<!-- test: NAME: VALUE -->`"
                marks[mark["name"]] = mark["value"]
        elif fence := FENCE.match(line):
            block = Block(fence["language"], number, _until(lines, "```", len(fence["indent"])), marks)
            marks = {}
            known = RUN | OUTPUT | SHOWN
            assert block.language in known, f"{page}:{number}: the block's language is one of {sorted(known)}"
            if block.language in OUTPUT and not block.marks and found and found[-1].output is None:
                found[-1].output = block
            else:
                found.append(block)
    return found


def _until(lines, end: str, indent: int = 0) -> str:
    taken = []
    for _, line in lines:
        if line.strip() == end:
            return "\n".join(taken) + "\n"
        taken.append(line[indent:])
    raise AssertionError(f"no {end} after {taken[:1]}")


def check(shown: Block, printed: str) -> None:
    """Checks that a block printed what the page shows.

    JSON must be equal, numbers to 0.1 %; objects may have more members than the page shows. In text, numbers and
    spaces may differ, and `...` stands for anything.
    """
    if shown.language == "json":
        _check_json(json.loads(shown.text), json.loads(printed), "$")
        return
    parts = [re.escape(_plain(part)) for part in shown.text.strip().split("...")]
    pattern = ".*".join(parts)
    message = f"shown:\n{shown.text}\nprinted:\n{printed}"
    assert re.fullmatch(pattern, _plain(printed.strip()), re.DOTALL), message


def _plain(text: str) -> str:
    # A table's columns and rules are as wide as their numbers.
    return re.sub(r"\s+", " ", re.sub(r"--+", "--", NUMBER.sub("0", text)))


def _check_json(shown, printed, path: str) -> None:
    message = f"{path}: the page shows {shown!r}, printed {printed!r}"
    if isinstance(shown, dict):
        assert isinstance(printed, dict) and shown.keys() <= printed.keys(), message
        for key, value in shown.items():
            _check_json(value, printed[key], f"{path}.{key}")
    elif isinstance(shown, list):
        assert isinstance(printed, list) and len(shown) == len(printed), message
        for index, (one, other) in enumerate(zip(shown, printed, strict=True)):
            _check_json(one, other, f"{path}[{index}]")
    elif isinstance(shown, float) and isinstance(printed, int | float):
        assert math.isclose(shown, printed, rel_tol=1e-3, abs_tol=1e-6), message
    else:
        assert shown == printed, message
