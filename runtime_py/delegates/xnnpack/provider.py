"""The library's table of functions for a weights cache; kvc provides three functions.

XNNPACK calls kvc's three functions while it creates a runtime. It calls two more
functions whenever a runtime is reshaped. If these two were Python code, an interrupt's
exception would be lost, and the library would get a null pointer. So the two are the
library's own functions, for an empty, finalized cache. The location of a packed weight
is an offset from the memory of that empty cache.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from kvc.runtime.delegates.xnnpack import functions as native
from kvc.runtime.delegates.xnnpack.library import Library

NOT_FOUND: Final = ctypes.c_size_t(-1).value
_NBYTES: Final = 4096
_SOFT: Final = 1  # `xnn_weights_cache_finalization_kind_soft`: keeps its memory


class Provider:
    """The table of functions; it must live as long as runtimes are reshaped.

    Attributes:
        address: address of the table.
    """

    def __init__(
        self,
        library: Library,
        look_up: Callable[[native.CacheKey], int],
        reserve: Callable[[int], int],
        insert: Callable[[native.CacheKey, int, int], int],
    ) -> None:
        """Create a table of three Python functions, which must not raise.

        Args:
            library: the library.
            look_up: returns the location of a packed weight by its key.
            reserve: takes a size in bytes, and returns the address to pack a weight to.
            insert: takes a key, an address and a size of a packed weight, and returns
                its location.

        Raises:
            NativeCallFailed: the library cannot allocate an empty cache.
        """
        xnn, check = library.xnn, library.check
        empty = ctypes.POINTER(native.CacheProvider)()
        made = xnn.xnn_create_weights_cache_with_size(_NBYTES, ctypes.byref(empty))
        check(made, "xnn_create_weights_cache_with_size")
        self._closer = weakref.finalize(self, xnn.xnn_delete_weights_cache, empty)
        self._closer.atexit = False
        ended = xnn.xnn_finalize_weights_cache(empty, _SOFT)
        check(ended, "xnn_finalize_weights_cache")
        own = empty.contents
        self._base = int(own.offset_to_addr(own.context, 0))
        self._table = native.CacheProvider(
            context=own.context,
            look_up=native.LOOK_UP(lambda _, key: look_up(key.contents)),
            reserve_space=native.RESERVE(lambda _, nbytes: reserve(nbytes)),
            look_up_or_insert=native.INSERT(
                lambda _, key, address, nbytes: insert(key.contents, address, nbytes)
            ),
            is_finalized=own.is_finalized,
            offset_to_addr=own.offset_to_addr,
            delete_cache=own.delete_cache,
        )
        self.address = ctypes.addressof(self._table)

    def offset(self, address: int) -> int:
        """Convert a packed weight's address to the offset that the library uses."""
        return (address - self._base) & NOT_FOUND

    def close(self) -> None:
        """Free the empty cache; a second call does nothing."""
        self._closer()


# Prepare items ahead of use, in a second thread.


T = TypeVar("T")

_MOST: Final = 2  # items; each may take as much memory as the largest weight


@contextmanager
def ahead_of(
    items: Sequence[T], work: Callable[[T], None]
) -> Iterator[Callable[[], None]]:
    """Call `work` for items in a second thread, a few items ahead of the caller.

    Yields a function for each item; the caller must call it when it takes the item.
    Errors of `work` end the thread silently, so the caller has to handle an unfinished
    item.
    """
    room, stopped = threading.Semaphore(_MOST), threading.Event()

    def run() -> None:
        with suppress(Exception):
            for item in items:
                room.acquire()
                if stopped.is_set():
                    return
                work(item)

    thread = threading.Thread(target=run, name="kvc-ahead", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system refuses to start a thread
        yield room.release
        return
    try:
        yield room.release
    finally:
        stopped.set()
        room.release()
        thread.join()
