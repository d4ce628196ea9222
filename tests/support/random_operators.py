"""Random programs of torch's operators; the seed and the number decide the program.

Each step is a sample of an operator. Most of its tensors are replaced by fitting
results of earlier steps, the others become inputs or buffers. Inputs have NaN,
infinity, zeros of both signs, denormals, the ends of integers, and elements that do not
lie side by side. Some programs have a dynamic size, which differs in their second call.
A step that eager refuses is drawn again.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf, nan
from pathlib import Path

import numpy as np
import torch
from operator_programs import (
    Code,
    Constant,
    OperatorProgram,
    Pool,
    Ref,
    Step,
    Tensors,
    operator,
)
from operator_samples import is_plain, name_of, operators, spread_apart
from step_checks import depends_on_memory, draws_numbers, keeps_shapes, made_of
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten

PAGE = Path(__file__).parents[2] / "compiler" / "OPERATORS.md"
DTYPES = (
    torch.float32, torch.int64, torch.bool, torch.float64, torch.int32, torch.uint8,
    torch.float16, torch.bfloat16,
)  # fmt: skip
DTYPE_WEIGHTS = (48, 12, 8, 8, 6, 4, 7, 7)
MOST_SAMPLES = 64  # of an operator and dtype
MOST_ELEMENTS = 20_000
TRIES = 30  # of a step that eager refuses
SPECIAL = {
    "nonfinite": (nan, inf, -inf),
    "zeros": (0.0, -0.0),
    "denormal": (1e-40, -1e-42, 6e-8, 0.0),
    "mixed": (nan, inf, -inf, -0.0, 1e-40, 1.0, -1.0, 0.5),
}
# Operators that factor matrices, or iterate.
FACTORING = re.compile(
    r"linalg\.|cholesky|svd|qr$|pinverse|logdet|inverse|ormqr|matrix_exp|lobpcg|norm\.nuc"
)


@cache
def usual_names() -> tuple[str, ...]:
    """Return the names of the operators to draw: those that kvc can compile.

    The page compiler/OPERATORS.md lists the refused ones.
    """
    (plain,) = re.findall(r"### Plain\n(.*?)\n###", PAGE.read_text(), re.DOTALL)
    lists = re.findall(r"\(\d+\): (.*)", plain)
    refused = {name for one in lists for name in re.findall(r"`(.+?)`", one)}
    return tuple(name_of(op) for op in operators() if name_of(op) not in refused)


@cache
def samples_of(name: str, dtype: torch.dtype) -> tuple[SampleInput, ...]:
    """Return some samples of an operator, spread over torch's list.

    Samples have at least one tensor; all tensors are dense, real and small. torch's
    random state is as before afterwards.
    """
    op = operator(name)
    if not op.supports_dtype(dtype, "cpu"):
        return ()
    with torch.random.fork_rng(devices=()):
        _seeded(f"{name} {dtype}")
        return _some_samples(op, dtype)


def _some_samples(op: OpInfo, dtype: torch.dtype) -> tuple[SampleInput, ...]:
    # Not `sample_inputs`, which looks for the test that wants them, up all frames.
    made = list(op.sample_inputs_func(op, "cpu", dtype, False))
    return tuple(filter(_is_usual, made[:: -(-len(made) // MOST_SAMPLES) or 1]))


def _is_usual(sample: SampleInput) -> bool:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    tensors = [each for each in leaves if isinstance(each, Tensor)]
    return bool(tensors) and all(map(_is_small, tensors))


def _is_small(tensor: Tensor) -> bool:
    return is_plain(tensor) and tensor.numel() <= MOST_ELEMENTS


def _seeded(text: str) -> random.Random:
    """Seed the generators that make samples; return one more of the same seed."""
    number = random.Random(text).getrandbits(32)
    torch.manual_seed(number), np.random.seed(number), random.seed(number)
    return random.Random(number)


def draw(
    seed: int, number: int, length: int, names: Sequence[str] = ()
) -> OperatorProgram:
    """Return a random program of `length` steps.

    It has fewer steps if eager refuses all that were drawn for one. `names` are the
    operators to draw from, all usual ones if empty.
    """
    author = _Author(_seeded(f"{seed} {number} {length}"), length, names)
    for _ in range(length):
        author.add_step()
    return author.finished()


class _Author:
    def __init__(self, choose, length, names) -> None:
        self.choose = choose
        self.names = names or usual_names()
        self.short = length == 1
        (self.dtype,) = choose.choices(DTYPES, DTYPE_WEIGHTS)  # of most steps
        self.program = OperatorProgram()
        self.made: list[Tensors] = [(), ()]  # by each call
        self.values = choose.choice((*[""] * 4, *SPECIAL))
        self.spread = choose.random() < 0.2
        self.holding = choose.choice((0.0, 0.0, 0.3))
        self.size = 0  # the dynamic one, if there is one yet
        self.sizing = choose.random() < 0.12

    def add_step(self) -> None:
        """Add a step that eager can run."""
        for _ in range(TRIES):
            name = self.choose.choice(self.names)
            dtype = self.dtype
            if self.short or self.choose.random() < 0.25:
                (dtype,) = self.choose.choices(DTYPES, DTYPE_WEIGHTS)
            samples = samples_of(name, dtype)
            if not samples:
                continue
            bound = _Bound(self, self.choose.choice(samples), name)
            if bound.allowed() and self._take(bound.program()):
                self.size = bound.size
                return

    def _take(self, program: OperatorProgram) -> bool:
        """Use a program that has one step more, if it can be compared with eager.

        Eager must run it, its tensors must be small, and the `step_checks` must pass.

        Returns:
            Whether the program was used.
        """
        random_state = torch.get_rng_state()
        try:
            made = made_of(program)
            if draws_numbers(program) or not keeps_shapes(program):
                return False
            if depends_on_memory(program, made, self.spread):
                return False
        except Exception:
            return False
        first, second = made
        added = len(first) - len(self.made[0])
        drew = not torch.equal(torch.get_rng_state(), random_state)
        if drew or added < 1 or len(first) != len(second):
            return False
        if not all(map(_is_small, (*first, *second))):
            return False
        *before, last = program.code.steps
        steps = (*before, replace(last, count=added))
        self.program = replace(program, code=replace(program.code, steps=steps))
        self.made = made
        return True

    def finished(self) -> OperatorProgram:
        places = range(len(self.made[0]))
        some = [place for place in places if self.choose.random() < 0.5]
        results = tuple(sorted({*some, *places[-1:]}))
        code = replace(self.program.code, results=results)
        return replace(self.program, code=code)


class _Bound:
    """A sample as the next step of a program: its tensors become the program's."""

    def __init__(self, author: _Author, sample: SampleInput, name: str) -> None:
        self.author, self.choose = author, author.choose
        self.name = name
        leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.calls = [list(call) for call in author.program.calls]
        self.held = list(author.program.held)
        self.dynamic = set(author.program.dynamic)
        self.size = author.size
        likely = 0.2 if author.short else 0.3
        writes = operator(name).inplace_variant is not None
        self.in_place = writes and self.choose.random() < likely
        self.leaves = tuple(
            self._ref(each.detach()) if isinstance(each, Tensor) else Constant(each)
            for each in leaves
        )

    def allowed(self) -> bool:
        """Return False for a matrix factorization of infinite numbers or NaN."""
        if not FACTORING.match(self.name):
            return True
        refs = [leaf for leaf in self.leaves if isinstance(leaf, Ref)]
        for made, inputs in zip(self.author.made, self.calls, strict=True):
            pool: Pool = {"made": made, "held": self.held, "inputs": inputs}
            if not all(pool[ref.source][ref.place].isfinite().all() for ref in refs):
                return False
        return True

    def program(self) -> OperatorProgram:
        step = Step(self.name, self.in_place, self.leaves, self.spec)
        steps = (*self.author.program.code.steps, step)
        code = Code(len(self.calls[0]), len(self.held), steps)
        first, second = (tuple(call) for call in self.calls)
        dynamic = frozenset(self.dynamic)
        return OperatorProgram(code, (first, second), tuple(self.held), dynamic)

    def _ref(self, tensor: Tensor) -> Ref:
        """Return the tensor of the program that replaces a tensor of the sample."""
        known = [] if self.author.short else self._fitting(tensor)
        if known and self.choose.random() < 0.75:
            return self.choose.choice(known)
        values = self._with_values(tensor)
        if self.choose.random() < self.author.holding:
            self.held.append(values.clone())
            return Ref("held", len(self.held) - 1)
        return self._input(values)

    def _fitting(self, tensor: Tensor) -> list[Ref]:
        """Return earlier results and buffers that can replace a tensor.

        Their dtype is the same, and their shape is, or they have enough elements.
        """
        found: list[Ref] = []
        pools = ("made", self.author.made), ("held", [self.held] * 2)
        for source, (first, second) in pools:
            for place, (one, other) in enumerate(zip(first, second, strict=True)):
                if one.dtype != tensor.dtype:
                    continue
                if one.shape == tensor.shape:
                    found += [Ref(source, place)] * 3
                elif one.shape == other.shape and one.numel() >= tensor.numel():
                    found.append(Ref(source, place, tuple(tensor.shape)))
        return found

    def _input(self, tensor: Tensor) -> Ref:
        place = len(self.calls[0])
        first = tensor.shape[0] if tensor.ndim else 0
        if self.author.sizing and not self.size and first > 2:
            self.size = first
        shrinks = bool(self.size) and first == self.size
        if shrinks:
            self.dynamic.add(place)
        other = tensor[: first - 1] if shrinks else tensor
        for call, each in zip(self.calls, (tensor, other), strict=True):
            call.append(self._laid_out(each))
        return Ref("inputs", place)

    def _laid_out(self, tensor: Tensor) -> Tensor:
        """Return a copy, whose elements may not lie side by side in memory."""
        if not self.author.spread or tensor.numel() < 2:
            return tensor.clone()
        if tensor.ndim > 1 and self.choose.random() < 0.5:
            return tensor.mT.contiguous().mT
        return spread_apart(tensor)

    def _with_values(self, tensor: Tensor) -> Tensor:
        """Return a copy in which some elements are the program's special values."""
        if not self.author.values or tensor.dtype == torch.bool:
            return tensor.clone()
        if tensor.is_floating_point():
            special = SPECIAL[self.author.values]
        else:
            limits = torch.iinfo(tensor.dtype)
            special = (limits.min, limits.max, 0, 1)
        some = torch.rand(tensor.shape) < 0.3
        chosen = torch.tensor(special, dtype=tensor.dtype)
        which = torch.randint(len(special), tensor.shape)
        return torch.where(some, chosen[which], tensor)
