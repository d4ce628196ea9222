"""Why a write copies bytes, and what change of the model would save them."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a write copies.

    Attributes:
        text: it.
        remedy: what to change in the model, so that it does not.
    """

    text: str
    remedy: str


VIEW_STORED: Final = Reason(
    "what is stored is a view of another value",
    "write rows into the state itself (index_copy_, cache_update), not a view",
)
VIEW_WRITTEN: Final = Reason(
    "what is written is a view of what it overwrites",
    "write new values only; of rows that move a ring keeps the order "
    '(cache_update with mode="circular")',
)
HANDED_OUT: Final = Reason(
    "the method hands the old value out",
    "return the new value, or only what is computed of the old one",
)


def other_length(op: str) -> Reason:
    """Return why a new content of another length is moved in."""
    return Reason(
        f"{op} makes a value of another length",
        "keep a state of the greatest length, and write rows into it (cache_update)",
    )


def old_value_read(op: str) -> Reason:
    """Return why a new content is made elsewhere while the old one is read."""
    return Reason(
        f"the old value is still read when {op} makes the new one",
        f"change the state in place (add_, index_copy_, cache_update), not by {op}",
    )


def branches_elsewhere(op: str, state: str) -> Reason:
    """Return why what control flow makes is moved in."""
    return Reason(
        f"{op} does not make it of the old value of {state}",
        f"give {op} the old value of {state}, and change it in place in each branch",
    )


def written_elsewhere(op: str, state: str) -> Reason:
    """Return why what an update makes is moved in."""
    return Reason(
        f"{op} does not write over the old value of {state}",
        f"let {op} write into {state} itself, not into another value",
    )


def both_read(op: str, source: str) -> Reason:
    """Return why an old value is kept for what needs the new one, too."""
    place = f" at {source}" if source else ""
    return Reason(
        f"{op}{place} reads the old value and needs the new one",
        f"let {op}{place} read the old value alone, before the write, or the new one "
        "alone",
    )
