"""Memory for intermediate values, which the native runtimes of one context share.

A runtime that needs more memory moves it, and the library sets up the other runtimes
again, without reading their inputs. It stops at a runtime that it has once refused to
reshape, and leaves those after it with freed memory. So if a change fails, all native
runtimes of the context are deleted, and the memory too; calls that were prepared before
make theirs again when they run next.
"""

import ctypes
import weakref
from collections.abc import Callable

from kvc.runtime.delegates.xnnpack.library import Library


class NativeWorkspace:
    """Memory between nodes that the runtimes of one context share, and who is set up.

    Attributes:
        ready: tokens of the calls that can be run as they are, one for each runtime at
            the most.
        users: pointers to native runtimes that use it; null where there is none.
    """

    def __init__(self, library: Library) -> None:
        """Make none before a runtime needs it."""
        self._library = library
        self._is_sound = True
        self._pointer = ctypes.c_void_p()
        self.ready: set[object] = set()
        self.users: list[ctypes.c_void_p] = []
        give_back = library.xnn.xnn_release_workspace
        weakref.finalize(self, release, give_back, self._pointer).atexit = False

    def pointer(self) -> ctypes.c_void_p:
        """Return where the library describes it.

        Raises:
            NativeCallFailed: the library makes none.
        """
        if self._pointer.value is None:
            made = self._library.xnn.xnn_create_workspace(ctypes.byref(self._pointer))
            self._library.check(made, "xnn_create_workspace")
        return self._pointer

    def begin(self) -> set[object]:
        """Begin to change a runtime; nothing is ready meanwhile.

        Returns what was.
        """
        ready = self.ready.copy()
        self.ready.clear()
        self._is_sound = False
        return ready

    def end(self, ready: set[object]) -> None:
        """End a change that went well; from now on this is ready."""
        self.ready.update(ready)
        self._is_sound = True

    def mend(self) -> None:
        """Delete all runtimes and the memory, if a change has broken off."""
        if self._is_sound:
            return
        self.ready.clear()
        for user in self.users:
            release(self._library.xnn.xnn_delete_runtime, user)
        self.close()
        self._is_sound = True

    def close(self) -> None:
        """Let go of it; doing so twice is safe. It goes with the last runtime."""
        release(self._library.xnn.xnn_release_workspace, self._pointer)


def release(function: Callable[[ctypes.c_void_p], object], it: ctypes.c_void_p) -> None:
    """Give what a pointer points to back, and make the pointer null."""
    if it.value is not None:
        taken, it.value = ctypes.c_void_p(it.value), None
        function(taken)
