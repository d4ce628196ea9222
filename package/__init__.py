"""kvc: compile models that carry state ahead of time, and run them.

`import kvc` imports nothing else. A name of the table below is looked up in
`kvc.runtime`, `kvc.compiler` or another part at its first use, which imports that part.
The file `__init__.pyi` tells type checkers the same names.
"""

_PARTS = (
    "compiler",
    "ray",
    "recipes",
    "runtime",
    "schema",
    "serving",
    "tools",
    "transformers",
)
_HOMES = {
    "runtime": (
        "BatchGeneration",
        "Conversation",
        "Generation",
        "GenerationSettings",
        "GrowingArray",
        "KvcError",
        "Prefix",
        "Program",
        "Session",
        "classify",
        "classify_images",
        "embed",
        "embed_images",
        "generate",
        "load",
        "record",
        "register_delegate",
        "similarity",
    ),
    "runtime.speech": ("transcribe",),
    "compiler": (
        "Bundle",
        "CacheConfig",
        "Checkpoint",
        "Dim",
        "Method",
        "ModelSpec",
        "StateSpec",
        "compile_program",
        "empty_parameters",
        "export_hf",
        "register_backend",
    ),
    "compiler.compiling": ("compile_model",),
    "recipes": ("Recipe", "load_recipe"),
}
_ALIASES = {"compile": "compile_model"}


def __getattr__(name: str) -> object:
    """Return a name of a part, a part itself, or `__version__`, at its first use.

    Raises:
        AttributeError: there is no such name.
        MissingPackage: the part needs a package that is not installed.
    """
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("kvc")
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    own = _ALIASES.get(name, name)
    for part, names in _HOMES.items():
        if own in names:
            found: object = getattr(import_module(f"{__name__}.{part}"), own)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_near(name)}")


def __dir__() -> list[str]:
    """Return all names, also those that nothing has used yet."""
    names = (name for names in _HOMES.values() for name in names)
    return sorted({*globals(), "__version__", *_PARTS, *names, *_ALIASES})


def _near(name: str) -> str:
    """Return a hint with the most similar name; "" if none is similar."""
    if name.startswith("__"):
        return ""
    from difflib import get_close_matches

    known = {one.lower(): one for one in __dir__() if not one.startswith("_")}
    close = get_close_matches(name.lower(), known, n=1)
    return f" (did you mean {known[close[0]]!r}?)" if close else ""
