"""Backends of which only the handles matter."""

from kvc.runtime.execution.delegate import Delegate


def backend_of(make_handle):
    """Return what a table of delegates holds, for handles made by `(partition, data)`.

    What a handle's `packed` says is summed up.
    """

    class Backend(Delegate):
        def __init__(self, options):
            self.options = options
            self.handles = []

        def init(self, partition, data):
            self.handles.append(make_handle(partition, data))
            return self.handles[-1]

        def packed(self):
            total = {}
            for handle in self.handles:
                total |= getattr(handle, "packed", dict)()
            return total

        def close(self):
            self.handles.clear()

    return Backend
