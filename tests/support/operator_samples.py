"""torch's own samples of operators (`op_db`), tried as modules against eager.

A sample is tried in several ways: as it is; in place, on a buffer, called twice; with a
dynamic first dim, also at another size; with tensors that are not contiguous; and in
the body of a branch, also in place. Needs `expecttest`, which torch's own tests need.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from held_buffers import Buffers
from module_outcomes import Outcome, compared, compiled_and_run
from torch import Tensor, nn
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from without_torch import WithoutTorch

from kvc.compiler import Dim, Method

Way = Literal["plain", "in place", "dynamic", "strided", "in a branch"]
WAYS: tuple[Way, ...] = ("plain", "in place", "dynamic", "strided", "in a branch")
DTYPES = (torch.float32, torch.int64)
# Which of equal elements these find is not what torch promises.
_PLACED = ("argsort", "sort", "topk")
# torch looks through all frames of the process for a test of its own, for each sample.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None
Tensors = tuple[Tensor, ...]
Operator = Callable[..., object]


class Sample(nn.Module):
    """Calls an operator with given tensors and the sample's other arguments."""

    def __init__(self, op: Operator, sample: SampleInput) -> None:
        super().__init__()
        leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        self.tensors = tuple(each.detach().clone() for each in tensors)
        self.others = [None if isinstance(each, Tensor) else (each,) for each in leaves]
        self.op = op

    def forward(self, tensors: Tensors) -> object:
        """Call the operator with these tensors in the places of the sample's."""
        left = iter(tensors)
        leaves = [next(left) if each is None else each[0] for each in self.others]
        x, args, kwargs = tree_unflatten(leaves, self.spec)
        return self.op(x, *args, **kwargs)


class Written(nn.Module):
    """Lets an operator overwrite a buffer, and returns the buffer's content."""

    def __init__(self, write: Operator, sample: SampleInput) -> None:
        super().__init__()
        self.sample = Sample(write, sample)
        self.register_buffer("held", self.sample.tensors[0].clone())

    def forward(self, tensors: Tensors = ()) -> object:
        """Call the operator in place on the buffer, and return a copy of the buffer."""
        self.sample((self.held, *tensors))
        return self.held.clone()


class InBranch(Buffers, chosen=torch.tensor(True)):
    """Calls a sample in a branch, and returns copies of its results.

    If the operator works in place, it overwrites a copy of its first tensor.
    """

    def __init__(self, sample: Sample, writes: bool) -> None:
        super().__init__()
        self.sample, self.writes = sample, writes

    def forward(self, tensors: Tensors) -> object:
        """Call the sample in the first of two similar branches."""
        return torch.cond(self.chosen, self._one, self._other, tensors)

    def _one(self, *tensors: Tensor) -> object:
        first, *others = tensors
        if not self.writes:
            return tree_map_only(Tensor, _whole, self.sample(tensors))
        held = _whole(first)
        self.sample((held, *others))
        return _whole(held)

    def _other(self, *tensors: Tensor) -> object:
        return tree_map_only(Tensor, lambda x: _whole(x + x), self._one(*tensors))


def _whole(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class Trial:
    model: nn.Module  # that is compiled; it keeps its buffers from call to call
    calls: tuple[Tensors, ...]  # the tensors of each call; the first is the example
    # the dims of the example that another call may change
    dynamic: dict[str, dict[int, Dim]] = field(default_factory=dict)
    # whether equal elements leave open which places are right
    open: bool = False


def operators() -> list[OpInfo]:
    """Return torch's operators but those that return uninitialized memory.

    The list is read through its module on purpose: torch looks at all global variables
    of the code that it traces, and the list is large.
    """
    return [op for op in invocations.op_db if "empty" not in op.name]


def name_of(op: OpInfo) -> str:
    return op.name + (op.variant_test_name and f".{op.variant_test_name}")


def trials_of(
    op: OpInfo, way: Way, most: int, dtypes: Sequence[torch.dtype] = DTYPES
) -> Iterator[Trial]:
    """Yield trials of an operator in one way: of `most` samples of each dtype."""
    for dtype in dtypes:
        if not op.supports_dtype(dtype, "cpu"):
            continue
        samples = list(op.sample_inputs("cpu", dtype))  # type: ignore[no-untyped-call]
        for sample in samples[:most]:
            made = Sample(op.op, sample)
            if made.tensors and all(map(is_plain, made.tensors)):
                yield from _in_way(op, sample, made, way)


def _ties(tensor: Tensor) -> bool:
    return tensor.unique().numel() < tensor.numel()


def is_plain(tensor: Tensor) -> bool:
    """Tell whether a tensor is dense and real."""
    return tensor.layout is torch.strided and not tensor.is_complex()


def _in_way(op, given, sample, way) -> Iterator[Trial]:
    tensors = sample.tensors
    write = op.inplace_variant if sample.others[0] is None else None
    match way:
        case "plain":
            yield Trial(
                sample, (tensors,), open=op.name in _PLACED and _ties(tensors[0])
            )
        case "in place":
            if write is not None:
                yield Trial(Written(write, given), (tensors[1:],) * 2)
        case "dynamic":
            yield from _dynamic(sample)
        case "strided":
            if any(each.numel() > 1 for each in tensors):
                yield Trial(sample, (tuple(map(spread_apart, tensors)),))
        case "in a branch":
            yield Trial(InBranch(sample, writes=False), (tensors,))
            if write is not None:
                yield Trial(InBranch(Sample(write, given), writes=True), (tensors,))


def _dynamic(sample: Sample) -> Iterator[Trial]:
    """Yield a trial whose second call has a smaller first size.

    The size is that of the first tensor's first dim, and changes in all tensors with
    the same first size.
    """
    tensors = sample.tensors
    size = tensors[0].shape[0] if tensors[0].ndim else 0
    if size < 3:  # torch takes sizes of 0 and 1 for fixed
        return
    dim = Dim("size", 2, size + 3)
    shared = [i for i, each in enumerate(tensors) if each.shape[:1] == (size,)]
    less = (t[: size - 1] if i in shared else t for i, t in enumerate(tensors))
    dynamic = {f"tensors[{i}]": {0: dim} for i in shared}
    yield Trial(sample, (tensors, tuple(each.clone() for each in less)), dynamic)


def spread_apart(tensor: Tensor) -> Tensor:
    """Return a view with the same elements, with a gap after each in memory."""
    wide = torch.stack((tensor, torch.zeros_like(tensor)), -1)
    return wide[..., 0]


def outcome(
    trial: Trial,
    path: Path,
    recipe: str = "fp32",
    apart: WithoutTorch | None = None,
) -> Outcome:
    """Compile a trial by a recipe, save, load and run it, and compare with eager.

    `apart` is the process to run it in, None to run it in this one.
    """
    expected = None if trial.open and recipe != "fp32" else _expected(trial)
    if expected is None:
        return Outcome("")
    calls = [((call,) if call else (), {}) for call in trial.calls]
    method = Method("forward", args=calls[0][0], dynamic=trial.dynamic)
    model = trial.model.eval()
    return compared(
        lambda: compiled_and_run(model, method, calls, path, recipe, apart), expected
    )


def _expected(trial: Trial) -> list[Tensor] | None:
    """Return eager's results of all calls; None if it fails or has none to compare.

    The buffers of the model are left as they were.
    """
    kept = {name: buffer.clone() for name, buffer in trial.model.named_buffers()}
    results: list[Tensor] = []
    try:
        torch.manual_seed(0)
        for call in trial.calls:
            made = tree_leaves(trial.model(*_copies(call)))
            tensors = [each for each in made if isinstance(each, Tensor)]
            if not tensors or not all(map(is_plain, tensors)):
                return None
            results += [each.clone() for each in tensors]
    except Exception:
        return None
    finally:
        for name, buffer in trial.model.named_buffers():
            if buffer.shape == kept[name].shape:
                buffer.copy_(kept[name])
    return results


def _copies(call: Tensors) -> tuple[Tensors, ...]:
    """Return copies of a call's tensors as one argument, or () for no tensors."""
    return (tuple(each.clone() for each in call),) if call else ()
