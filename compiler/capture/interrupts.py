"""Ctrl-C during a trace, which torch's native code may hand on as another error.

pybind11 makes a `RuntimeError` or `SystemError` of a `KeyboardInterrupt` that came when
native code called back into Python. In: an error of a trace. Out: the interrupt.
"""


def raise_interrupt(error: BaseException) -> None:
    """Raise the interrupt that an error stands for, if it stands for one.

    Raises:
        KeyboardInterrupt: the user asked to stop; not that something is wrong.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, KeyboardInterrupt) or "KeyboardInterrupt" in str(link):
            raise KeyboardInterrupt from error
        link = link.__cause__ or link.__context__
