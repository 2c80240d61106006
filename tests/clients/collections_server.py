"""A server that keeps collections and serves no model."""

import pathlib

from millpond import Server


def start(scratch: pathlib.Path, *flags: str, name: str = "server") -> Server:
    """Its collections are in `scratch/collections`, whichever server is started there."""
    models = scratch / "models"
    models.mkdir(exist_ok=True)
    log = scratch / f"{name}.log"
    return Server(models, "--collections-dir", str(scratch / "collections"), *flags, log=log).wait_ready()
