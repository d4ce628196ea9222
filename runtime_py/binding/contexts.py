"""Execution contexts: scratch memory and bound frames, leased for one call at a time.

In: a request for a context, with the session that asks. Out: one that no other call
uses, preferably the one that served this session last, since its frames are bound to
the session's states. A context keeps a few frames and drops the least recently used;
one that is bound to other lengths is taken out to be bound again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from kvc.runtime.arenas import Arena
from kvc.runtime.binding.bindings import Binding
from kvc.runtime.delegates.base import Workspace
from kvc.runtime.states.memory import StateMemory

FRAMES_KEPT = 8
Version = tuple[object, ...]  # lengths and addresses that a frame is bound to
FrameKey = tuple[int, tuple[tuple[int, ...], ...], StateMemory | None]


class ExecutionContext:
    """What one running call needs for itself."""

    def __init__(self, scratch_nbytes: int, workspace_nbytes: int) -> None:
        self.scratch = Arena(scratch_nbytes)
        self.workspace = Workspace(Arena(workspace_nbytes))
        self.served: StateMemory | None = None
        self._frames: OrderedDict[FrameKey, tuple[Version, Binding]] = OrderedDict()

    def frame(self, key: FrameKey, version: Version = ()) -> Binding | None:
        """Return what is bound for a method, steady shapes and states, if it still is.

        None where nothing is, or something to another version.
        """
        found = self._frames.get(key)
        if found is None or found[0] != version:
            return None
        self._frames.move_to_end(key)
        return found[1]

    def take(self, key: FrameKey) -> Binding | None:
        """Take what is bound, whatever the version: it is to be bound again."""
        found = self._frames.pop(key, None)
        return None if found is None else found[1]

    def keep(self, key: FrameKey, binding: Binding, version: Version = ()) -> None:
        """Keep what has been bound."""
        self._frames[key] = (version, binding)
        if len(self._frames) > FRAMES_KEPT:
            self._frames.popitem(last=False)

    def give_back(self) -> None:
        """Give the pages of scratch memory back."""
        self.scratch.discard()
        self.workspace.arena.discard()

    def close(self) -> None:
        """Drop what is bound, and what delegates keep here."""
        self._frames.clear()
        self.workspace.close()

    def forget_closed(self) -> None:
        """Drop what is bound to the states of sessions that have been closed."""
        for key in list(self._frames):
            if key[2] is not None and key[2].closed:
                self._frames.pop(key, None)
        if self.served is not None and self.served.closed:
            self.served = None


class ContextPool:
    """The idle contexts of a program; used from many threads."""

    def __init__(self, make: Callable[[], ExecutionContext]) -> None:
        self._make = make
        # Re-entrant: a session may be collected at any point.
        self._lock = threading.RLock()
        self._idle: list[ExecutionContext] = []
        self._leased = 0
        self._closed = False
        self._when_drained: Callable[[], None] | None = None

    def take(self, states: StateMemory | None) -> ExecutionContext | None:
        """Lend a context for one call, None once the pool is closed."""
        with self._lock:
            if self._closed:
                return None
            for context in self._idle:
                if context.served is states:
                    self._idle.remove(context)
                    break
            else:
                context = self._idle.pop() if self._idle else self._make()
            self._leased += 1
            return context

    def put_back(self, context: ExecutionContext, states: StateMemory | None) -> None:
        """Take a context back from a call on the states of a session."""
        context.served = states
        with self._lock:
            if not self._closed:
                self._leased -= 1
                context.forget_closed()
                self._idle.append(context)
                return
        context.close()  # before the last lease ends, and delegates are closed
        with self._lock:
            self._leased -= 1
        self._finish()

    def forget_closed(self) -> None:
        """Drop frames of closed sessions; leased contexts do so on return."""
        with self._lock:
            for context in self._idle:
                context.forget_closed()

    def give_back(self) -> None:
        """Give the scratch pages of contexts that no call uses back."""
        with self._lock:
            for context in self._idle:
                context.give_back()

    def close(self, when_drained: Callable[[], None]) -> None:
        """Lend no more and drop all; call `when_drained` once no call runs any more."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed = True
            self._when_drained = when_drained
            self._leased += 1  # by this, until what is idle has been closed
        for context in idle:
            context.close()
        with self._lock:
            self._leased -= 1
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            if self._leased or self._when_drained is None:
                return
            action, self._when_drained = self._when_drained, None
        action()
