"""Notice what a method does to Python state, which tracing would freeze.

A trace records tensor operations of one call. A counter `self.pos += 1`, a list that
grows, a plain attribute that is assigned anew: all of these would keep the value of
that one call for ever. So attributes are compared before and after the traced call.
"""

from collections.abc import Iterator

from torch import nn

# What modules hold for themselves; tensors in buffers and parameters are looked at
# elsewhere, by identity.
_OWN = {"_parameters", "_buffers", "_modules", "training", "forward"}
_DEEPEST = 4  # levels of containers that are looked into

Snapshot = dict[str, object]


def snapshot(model: nn.Module) -> Snapshot:
    """Return path -> value for the Python attributes of all modules.

    Containers are opened; tensors and other objects stand for themselves, so keeping
    the snapshot keeps them alive and their identities apart.
    """
    found: Snapshot = {}
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OWN and "hook" not in name:
                path = f"{prefix}.{name}" if prefix else name
                found.update(_opened(path, value, _DEEPEST))
    return found


def _opened(path: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, list | tuple) and depth:
        yield f"len({path})", len(value)
        for i, item in enumerate(value):
            yield from _opened(f"{path}[{i}]", item, depth - 1)
    elif isinstance(value, dict) and depth:
        yield f"len({path})", len(value)
        for key, item in value.items():
            yield from _opened(f"{path}[{key!r}]", item, depth - 1)
    else:
        yield path, value


def changed_path(before: Snapshot, after: Snapshot) -> str | None:
    """Return the first attribute that differs, None when none does."""
    for path, value in after.items():
        if path not in before or not _same(before[path], value):
            return path.removeprefix("len(").removesuffix(")")
    return next((path for path in before if path not in after), None)


def _same(a: object, b: object) -> bool:
    if a is b:
        return True
    plain = (bool, int, float, str, bytes)
    return isinstance(a, plain) and type(a) is type(b) and a == b
