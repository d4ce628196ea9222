"""Memory for intermediate values, shared by the native runtimes of one context.

If a runtime needs more memory, the library moves the memory and sets all other
runtimes up again, without reading their inputs. If the library has once refused to
reshape one of the runtimes, it stops there, and leaves later runtimes with freed
memory. So if a change fails, the memory and all native runtimes of the context are
deleted. Calls that were prepared earlier create their runtimes again when they next
run.
"""

import ctypes
import weakref
from collections.abc import Callable

from kvc.runtime.delegates.xnnpack.library import Library


class NativeWorkspace:
    """Memory shared by the runtimes of one context, and the set of ready calls.

    Attributes:
        ready: tokens of calls that are set up, at most one for each runtime.
        users: pointers to native runtimes that use the memory; a pointer is null if its
            runtime does not exist.
    """

    def __init__(self, library: Library) -> None:
        """Initialize without memory; it is created when a runtime needs it."""
        self._library = library
        self._is_sound = True
        self._pointer = ctypes.c_void_p()
        self.ready: set[object] = set()
        self.users: list[ctypes.c_void_p] = []
        give_back = library.xnn.xnn_release_workspace
        weakref.finalize(self, release, give_back, self._pointer).atexit = False

    def pointer(self) -> ctypes.c_void_p:
        """Return the pointer to the library's workspace.

        Raises:
            NativeCallFailed: the library cannot create a workspace.
        """
        if self._pointer.value is None:
            made = self._library.xnn.xnn_create_workspace(ctypes.byref(self._pointer))
            self._library.check(made, "xnn_create_workspace")
        return self._pointer

    def begin(self) -> set[object]:
        """Mark the start of a change of a runtime; no call is ready until `end`.

        Returns the tokens of the calls that were ready.
        """
        ready = self.ready.copy()
        self.ready.clear()
        self._is_sound = False
        return ready

    def end(self, ready: set[object]) -> None:
        """End a successful change; the calls with these tokens are ready again."""
        self.ready.update(ready)
        self._is_sound = True

    def mend(self) -> None:
        """Delete all runtimes and the memory if the last change has failed."""
        if self._is_sound:
            return
        self.ready.clear()
        for user in self.users:
            release(self._library.xnn.xnn_delete_runtime, user)
        self.close()
        self._is_sound = True

    def close(self) -> None:
        """Release the memory; the library frees it when the last runtime is deleted.

        A second call does nothing.
        """
        release(self._library.xnn.xnn_release_workspace, self._pointer)


def release(function: Callable[[ctypes.c_void_p], object], it: ctypes.c_void_p) -> None:
    """Release the object behind the pointer `it`, and set `it` to null."""
    if it.value is not None:
        taken, it.value = ctypes.c_void_p(it.value), None
        function(taken)
