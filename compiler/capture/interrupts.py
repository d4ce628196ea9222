"""Recognize Ctrl-C during a trace, which torch may turn into another error.

pybind11 makes a `RuntimeError` or `SystemError` of a `KeyboardInterrupt` that came
while native code called back into Python. In: an error of a trace. Out: the interrupt.
"""

_OF_NATIVE_CODE = (RuntimeError, SystemError)


def raise_interrupt(error: BaseException, outer: BaseException | None) -> None:
    """Raise the interrupt that an error stands for, if it stands for one.

    Args:
        error: of a trace.
        outer: what was being handled when the trace began, which is none of it.

    Raises:
        KeyboardInterrupt: the user asked to stop; not that something is wrong.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and link is not outer and id(link) not in seen:
        seen.add(id(link))
        wrapped = type(link) in _OF_NATIVE_CODE and "KeyboardInterrupt" in str(link)
        if wrapped or isinstance(link, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        link = link.__cause__ or link.__context__
