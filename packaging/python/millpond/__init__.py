"""Finds the `millpond` program that pip installed. The program needs no Python."""

import os
import site
import sys
import sysconfig


def find_program() -> str:
    """Returns the path of the program.

    Raises FileNotFoundError, with the places that were searched, if the program is missing.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    folders = [
        sysconfig.get_path("scripts"),
        # `pip install --user`.
        os.path.join(site.getuserbase(), "bin"),
        # `pip install --prefix DIR`, and `pip install --target DIR`.
        os.path.normpath(os.path.join(package, "..", "..", "..", "..", "bin")),
        os.path.normpath(os.path.join(package, "..", "bin")),
        os.path.join(sys.prefix, "bin"),
    ]
    programs = [os.path.join(folder, "millpond") for folder in folders]
    for program in programs:
        if os.access(program, os.X_OK):
            return program
    raise FileNotFoundError("the program was not found; run `pip install --force-reinstall millpond`. "
                            "Looked for " + ", ".join(programs))
