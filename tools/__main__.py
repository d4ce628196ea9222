"""The `kvc` command; `python -m kvc.tools` runs it if its script is not on the path."""

import signal
import sys
from types import FrameType


def start() -> None:
    """Import and run the command line; Ctrl-C ends it quietly, also in the import."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    try:
        from kvc.tools.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)  # while it was imported; `cli.py` answers after that


def _end(number: int, frame: FrameType | None) -> None:
    """End on a signal, and remove temporary folders; a second signal ends at once.

    Raises:
        SystemExit: always, with the exit code of a process that the signal ended.
    """
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


if __name__ == "__main__":
    start()
