"""kvc: compile models that carry state ahead of time, and run them.

Import `kvc.compiler`, `kvc.runtime`, `kvc.recipes` or `kvc.schema`; this module imports
nothing.
"""


def __getattr__(name: str) -> str:
    """Return `__version__`, which is looked up when it is asked for."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("kvc")
