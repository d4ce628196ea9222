"""Interrupt one call of a session, as Ctrl-C does."""


class interrupted:  # noqa: N801  # reads as a function
    """Interrupt a session's call number `at`, before it runs or after."""

    def __init__(self, session, at, late):
        self.session, self.at, self.late = session, at, late

    def __enter__(self):
        call, self.calls = self.session.call, 0

        def counted(name, *args):
            self.calls += 1
            if self.calls == self.at and not self.late:
                raise KeyboardInterrupt
            made = call(name, *args)
            if self.calls == self.at:
                raise KeyboardInterrupt
            return made

        self.session.call = counted

    def __exit__(self, *_):
        del self.session.call
