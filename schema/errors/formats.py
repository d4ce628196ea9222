"""Errors in the bytes of a bundle or a data file."""

from kvc.schema.errors.base import KvcError


class FormatError(KvcError):
    """The bytes of a bundle are wrong."""

    path: str


class Truncated(FormatError):
    """The file ends too early, or goes on past its end."""

    what: str
    found: int
    expected: int
    template = "{path}: the file has {found} bytes, {what} needs {expected}; it is cut short or damaged, fetch it again"


class BadMagic(FormatError):
    """The file is not a kvc file."""

    found: str
    guess: str
    template = (
        "{path}: not a kvc file: it looks like {guess} (its first bytes: {found})"
    )


class WrongKind(BadMagic):
    """The file is a kvc file of another kind."""

    expected: str
    template = "{path}: {expected} is expected here, but it is {guess}"


class UnsupportedVersion(FormatError):
    """The file is of another format version."""

    found: int
    expected: int
    template = "{path}: format version {found}, but this kvc reads version {expected}; compile the model again, or use the kvc that wrote it"


class DigestMismatch(FormatError):
    """Bytes differ from their digest."""

    what: str
    nbytes: int
    offset: int
    template = "{path}: {what} is damaged: its {nbytes} bytes at offset {offset} do not have the digest that the file states; fetch the file again or compile the model again"


class LimitExceeded(FormatError):
    """Something is larger than kvc allows."""

    what: str
    found: int
    limit: int
    template = "{path}: {what} is {found}, more than the limit of {limit}"


class BadStructure(FormatError):
    """Offsets, counts or padding that no writer of kvc makes."""

    offset: int
    what: str
    template = "{path}: malformed at byte {offset}: {what}"


class BadProgram(FormatError):
    """The file is well formed, but what it says is impossible."""

    where: str
    what: str
    template = "{path}: {where}: {what}"
