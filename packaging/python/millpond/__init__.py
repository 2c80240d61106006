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
    # The folders beside this package come first: the others may have the program of another installation.
    folders = [
        # `pip install --target DIR`.
        os.path.normpath(os.path.join(package, "..", "bin")),
        # A virtual environment, `pip install --user`, and `pip install --prefix DIR`.
        os.path.normpath(os.path.join(package, "..", "..", "..", "..", "bin")),
        sysconfig.get_path("scripts"),
        os.path.join(site.getuserbase(), "bin"),
        os.path.join(sys.prefix, "bin"),
    ]
    programs = [os.path.join(folder, "millpond") for folder in folders]
    for program in programs:
        if os.access(program, os.X_OK):
            return program
    raise FileNotFoundError("the program was not found; run `pip install --force-reinstall millpond`. "
                            "Looked for " + ", ".join(programs))
