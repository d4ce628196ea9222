"""`Problems`: why a file of weights cannot be used."""

from collections.abc import Sequence
from typing import Final

from kvc.schema.errors import BadCheckpoint

_SHOWN: Final = 10  # problems of a checkpoint in a message


class Problems(Exception):
    """A file cannot be used; the arguments of the exception are the reasons found."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons why the file cannot be used."""
        return tuple(map(str, self.args))


def shown(name: str) -> str:
    """Return a name from a file in a form that is safe in a message."""
    return name if name.isprintable() else repr(name)


def bad_checkpoint(wrong: Sequence[str], path: str) -> BadCheckpoint:
    """Return the error for problems of a checkpoint; it shows the first of them."""
    lines = [f"  {reason}" for reason in wrong[:_SHOWN]]
    if len(wrong) > _SHOWN:
        lines.append(f"  and {len(wrong) - _SHOWN} more like this")
    return BadCheckpoint(path=path, problems=tuple(wrong), listing="\n".join(lines))
