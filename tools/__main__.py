"""The `kvc` command, and `python -m kvc.tools` where its script is not on the path."""

import signal
import sys
from types import FrameType


def start() -> None:
    """Import the command line and run it; Ctrl-C ends it quietly from the beginning."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    try:
        from kvc.tools.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)  # while it was imported; `cli.py` answers after that


def _end(number: int, frame: FrameType | None) -> None:
    """End in order, so that no folder of temporary files stays; the next time at once.

    Raises:
        SystemExit: always, with what a shell says of a process that a signal ended.
    """
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


if __name__ == "__main__":
    start()
