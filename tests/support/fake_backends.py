"""Backends for tests that need only the handles of a backend."""

from kvc.runtime.execution.delegate import Delegate


def backend_of(make_handle):
    """Return a delegate class whose handles `make_handle(partition, data)` makes.

    Its `packed` joins the results of its handles' `packed`.
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
