"""Distinguish failures of a Rust library from interrupts and lack of memory.

When its code panics, such a library raises `PanicException`, which is not an
`Exception` and which no module exports.
"""


def is_failure(error: BaseException) -> bool:
    """Tell whether an error is a failure, not an interrupt or lack of memory."""
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
