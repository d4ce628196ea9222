"""The base class of all errors, and functions that format parts of messages."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Never, dataclass_transform

_MOST_LISTED: Final = 12
_LONGEST: Final = 100  # characters of a name that is compared with others


@dataclass_transform(kw_only_default=True, eq_default=False)
class KvcError(Exception):
    """The base class of all errors that kvc raises on purpose.

    A kind of error declares its facts (what failed, where and so on) as a dataclass
    declares fields. A type checker thus knows the attributes, and the constructor,
    which takes the facts by name. The decorator `dataclass` is not used: to make all
    kinds, it would take 25 ms, a tenth of the time allowed for a start. A fact with a
    default is in `facts` only if it was passed, so a template must not name such a
    fact.

    Attributes:
        template: the message, with the names of facts in braces.
        code: the stable name of the kind, as `kvc ... --json` prints it.
    """

    template = ""

    def __init__(
        self, **facts: Never
    ) -> None:  # a family class has no facts of its own
        self.__dict__.update(facts)
        super().__init__(self._text())

    def _text(self) -> str:
        """Return the message of the error."""
        return self.template.format(**self.facts)

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle stores: the class and the facts.

        Pickle's default does not work, since the constructor takes only keyword
        arguments.
        """
        return partial(type(self), **vars(self)), ()

    @property
    def facts(self) -> dict[str, object]:
        """Return the keyword arguments that the constructor got, by name."""
        return vars(self)

    @property
    def code(self) -> str:
        """Return the stable name of this kind of error."""
        return type(self).__name__


def listing(names: Sequence[str]) -> str:
    """Join names by commas, for a message; return "none" if there are no names."""
    return ", ".join(names) if names else "none"


def shortened(names: Sequence[str]) -> str:
    """Join names as `listing` does; of many names, list the first, count the rest."""
    more = len(names) - _MOST_LISTED
    return listing(names) if more < 1 else f"{listing(names[:-more])} and {more} more"


def meant(name: object, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, where x is the known name most similar to `name`.

    The result is "" if no known name is similar.
    """
    import difflib

    by_lower = {one.lower(): one for one in known}
    asked = str(name)[:_LONGEST].lower()  # the search takes the square of its length
    close = difflib.get_close_matches(asked, by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def reason_of(error: BaseException) -> str:
    """Return the reason of a failed system call, for a message."""
    return getattr(error, "strerror", None) or str(error)
