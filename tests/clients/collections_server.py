"""A server with collections and without models."""

import pathlib

from millpond import Server


def start(scratch: pathlib.Path, *flags: str, name: str = "server") -> Server:
    """Starts a server with its collections in `scratch/collections`."""
    models = scratch / "models"
    models.mkdir(exist_ok=True)
    log = scratch / f"{name}.log"
    return Server(models, "--collections-dir", str(scratch / "collections"), *flags, log=log).wait_ready()
