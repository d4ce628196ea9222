"""The `kvc` command, and `python -m kvc.tools` where its script is not on the path."""

import sys


def start() -> None:
    """Import the command line and run it; Ctrl-C ends it quietly from the beginning."""
    try:
        from kvc.tools.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)  # while it was imported; `cli.py` answers after that


if __name__ == "__main__":
    start()
