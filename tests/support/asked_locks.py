"""Notice when a thread is about to wait for a shared lock on a file."""

import fcntl
import threading

import pytest


def asked_to_share(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    asked, lock = threading.Event(), fcntl.flock

    def ask(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            asked.set()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", ask)
    return asked
