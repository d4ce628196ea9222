"""Tell failures of a library written in Rust from interrupts and lack of memory.

Where its code panics, such a library raises `PanicException`, which is no `Exception`
and which no module exports.
"""


def is_failure(error: BaseException) -> bool:
    """Tell whether a library has failed: no interrupt, exit, or lack of memory."""
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
