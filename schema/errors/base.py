"""The root of all errors, how a message lists names, and why the system refused."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

_MOST_LISTED: Final = 12


class KvcError(Exception):
    """The root of all errors that kvc raises on purpose.

    Attributes:
        code: the stable name of the kind, as `kvc ... --json` prints it.
    """

    template = "{message}"

    def __init__(self, **facts: object) -> None:
        self.__dict__.update(facts)
        self.facts = facts
        super().__init__(self._text())

    def _text(self) -> str:
        """Return the message."""
        return self.template.format(**self.facts)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by class and facts, since the constructor takes only keywords."""
        return (_rebuild, (type(self), self.facts))

    @property
    def code(self) -> str:
        """Return the stable name of this kind of error."""
        return type(self).__name__


def _rebuild(kind: type[KvcError], facts: dict[str, object]) -> KvcError:
    return kind(**facts)


def listing(names: Sequence[str]) -> str:
    """Join names for a message, or say that there are none."""
    return ", ".join(names) if names else "none"


def shortened(names: Sequence[str]) -> str:
    """Join names as `listing`, of many only the first."""
    more = len(names) - _MOST_LISTED
    return listing(names) if more < 1 else f"{listing(names[:-more])} and {more} more"


def meant(name: object, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name most like one, "" for none."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def reason_of(error: BaseException) -> str:
    """Return why a call of the system failed, for a message."""
    return getattr(error, "strerror", None) or str(error)
