"""Run calls on a model and on its bundle, and compare every result."""

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from kvc.compiler import compile_program
from kvc.runtime import load


def run_both(model, methods, calls, folder, recipe="fp32", atol=0.0) -> None:
    """Assert that a bundle returns the same results as the model for all calls.

    The model is compiled before the first eager call, which also shows that compiling
    has not changed the model's state.

    Args:
        model: the model.
        methods: the methods to compile.
        calls: tuples (method name, args), or (method name, args, kwargs).
        folder: the folder for the bundle.
        recipe: the recipe.
        atol: the allowed absolute difference.
    """
    model = model.eval()
    compile_program(model, methods, recipe).save(folder / "model.kvc")
    with load(folder / "model.kvc") as program, program.session() as session:
        for name, args, *rest in calls:
            kwargs = rest[0] if rest else {}
            with torch.no_grad():
                expected = getattr(model, name)(*args, **kwargs)
                expected = pytree.tree_map_only(Tensor, torch.clone, expected)
            if _has_tensor((args, kwargs)):
                same(session.call(name, *args, **kwargs), expected, atol)
            else:
                got = session.call(name, *args, **kwargs)
                same(pytree.tree_map(torch.from_numpy, got), expected, atol)


def _has_tensor(structure: object) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(structure))


def same(got: object, expected: object, atol: float = 0.0) -> None:
    """Assert that two nested results agree in structure, types and values."""
    got_leaves, got_spec = pytree.tree_flatten(got)
    leaves, spec = pytree.tree_flatten(expected)
    assert got_spec == spec
    for one, other in zip(got_leaves, leaves, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=atol, equal_nan=True)
        else:
            assert type(one) is type(other)
            assert one == other
