"""`python -m millpond`: replaces this process by the program of the same installation."""

import os
import sys

from millpond import find_program


def main() -> None:
    """Starts the program with this process's arguments; does not return."""
    try:
        program = find_program()
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
