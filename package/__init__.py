"""kvc: compile models that carry state ahead of time, and run them.

`kvc.compiler`, `kvc.runtime`, `kvc.recipes` and `kvc.schema` are imported by
themselves; this module imports nothing.
"""


def __getattr__(name: str) -> str:
    """Return `__version__`, which is looked up when it is asked for."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("kvc")
