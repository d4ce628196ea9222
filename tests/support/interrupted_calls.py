"""Interrupt one call of a session, as Ctrl-C does."""

from contextlib import contextmanager
from itertools import count


@contextmanager
def interrupted(session, at, late):
    """Interrupt call number `at` of a session, before it runs or (`late`) after it."""
    call, calls = session.call, count(1)

    def counted(name, *args, **named):
        mine = next(calls) == at
        if mine and not late:
            raise KeyboardInterrupt
        made = call(name, *args, **named)
        if mine:
            raise KeyboardInterrupt
        return made

    session.call = counted
    try:
        yield
    finally:
        del session.call
