"""Run a session beside the eager model: results, states and arguments of every call."""

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.utils._pytree as pytree
from eager_parity import same
from torch import Tensor, nn

from kvc.compiler import compile_program
from kvc.runtime import Program, Session, load

Call = tuple[object, ...]


@contextmanager
def opened(model, methods, folder, recipe="fp32", **options) -> Iterator[Program]:
    path = folder / "model.kvc"
    compile_program(copy.deepcopy(model).eval(), methods, recipe, **options).save(path)
    with load(path) as program:
        yield program


def agree(session: Session, model: nn.Module, calls: Sequence[Call]) -> None:
    """Assert that a session and a model do the same in each call (method, *args).

    The results, the arguments after the call, and every state (with the buffer of the
    same name) are compared. The calls change the model: pass a copy to keep it.
    """
    for name, *args in calls:
        theirs, ours = (pytree.tree_map_only(Tensor, torch.clone, args) for _ in "ab")
        with torch.no_grad():
            expected = getattr(model, name)(*theirs)
            expected = pytree.tree_map_only(Tensor, torch.clone, expected)
        same(as_tensors(session.call(name, *ours)), expected)
        same(ours, theirs)
        states_agree(session, model)


def states_agree(session: Session, model: nn.Module) -> None:
    """Assert that every state equals the model's buffer of the same name.

    A state `d[1]` is the second part of the buffer `d`, which the compiler has divided.
    """
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for name, found in session.state.items():
        whole, *places = re.findall(r"[^\[\]]+", name)
        wanted = buffers[whole].detach()[tuple(map(int, places))]
        same(as_tensors(np.array(found)), wanted)


def as_tensors(results: object) -> object:
    return pytree.tree_map_only(np.ndarray, torch.from_numpy, results)


def run(model, methods, calls, folder, **options) -> None:
    """Compile a model, and assert that a session agrees with it in each call."""
    with (
        opened(model, methods, folder, **options) as program,
        program.session() as session,
    ):
        agree(session, copy.deepcopy(model).eval(), calls)


def snapshot(session: Session) -> dict[str, np.ndarray]:
    return {name: np.array(found) for name, found in session.state.items()}
