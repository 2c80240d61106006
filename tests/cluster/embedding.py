"""The embedding model of tests with images: it averages colours."""

import pathlib
import tempfile
from collections.abc import Iterable

from processes import Node

# Modules of tests/clients, which `processes` makes importable.
from millpond import drop_in
from test_images import patches


def serve_patches(nodes: Iterable[Node], names: tuple[str, ...] = ("patches",)) -> None:
    """Gives nodes the model under each of the names. Call it before they start."""
    with tempfile.TemporaryDirectory() as scratch:
        model = patches(pathlib.Path(scratch) / "patches.onnx")
        for node in nodes:
            for name in names:
                drop_in(model, node.directory / f"models/{name}", 1)
