"""Shrink a program of operators that fails, and print it as a test.

A program shrinks by returning only one tensor, by taking a step's result as an input,
by losing steps and inputs that no result needs, by plainer values, and by having one
call.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from operator_programs import (
    Code,
    Constant,
    OperatorProgram,
    Ref,
    Source,
    Step,
    copies,
    function_of,
    operator,
)
from operator_verdicts import Judge, Verdict
from torch import Tensor
from torch.utils._pytree import tree_unflatten

Names = dict[tuple[Source, int], tuple[Source, int]]


def shrunk(program: OperatorProgram, verdict: Verdict, judge: Judge) -> OperatorProgram:
    """Return the smallest program found that fails in the same way."""
    while True:
        for less in _lesser(program):
            (made,) = judge.verdicts([less])
            if made.kind == verdict.kind:
                program = less
                break
        else:
            return program


def _lesser(program: OperatorProgram) -> Iterator[OperatorProgram]:
    """Yield programs that are smaller in one respect, the smallest first."""
    code = program.code
    made = range(sum(step.count for step in code.steps))
    for place in made:
        less = _needed(replace(program, code=replace(code, results=(place,))))
        if len(less.code.steps) < len(code.steps) or len(code.results) > 1:
            yield less
    for place in reversed(made):
        if any(_takes(step, place) for step in code.steps):
            yield _needed(_with_input(program, place))
    for place in range(code.holds):
        yield _needed(_unheld(program, place))
    if len(program.calls) > 1:
        yield replace(program, calls=program.calls[:1], dynamic=frozenset())
    for place in range(code.takes):
        yield from _plainer(program, place)


def _takes(step: Step, place: int) -> bool:
    return any(ref.source == "made" and ref.place == place for ref in step.refs())


def _with_input(program: OperatorProgram, place: int) -> OperatorProgram:
    held = copies(program.held)
    calls = []
    with torch.no_grad():
        for call in program.calls:
            made = copies(program.code.made_of(copies(call), held))
            calls.append((*call, made[place]))
    names: Names = {("made", place): ("inputs", program.code.takes)}
    return _renamed(replace(program, calls=tuple(calls)), names)


def _unheld(program: OperatorProgram, place: int) -> OperatorProgram:
    calls = tuple((*call, program.held[place].clone()) for call in program.calls)
    names: Names = {("held", place): ("inputs", program.code.takes)}
    return _renamed(replace(program, calls=calls), names)


def _plainer(program: OperatorProgram, place: int) -> Iterator[OperatorProgram]:
    """Yield programs in which input `place` is contiguous, or has plainer values.

    All its values become 0.5, or every other one does.
    """
    given = [call[place] for call in program.calls]
    if not all(x.is_contiguous() for x in given):
        yield _with_values(program, place, [x.contiguous() for x in given])
    if given[0].is_floating_point() and not all(map(_is_plain, given)):
        yield _with_values(program, place, [torch.full_like(x, 0.5) for x in given])
        some = list(map(_half_plain, given))
        if not all(
            map(torch.equal, *(map(torch.nan_to_num, x) for x in (some, given)))
        ):
            yield _with_values(program, place, some)


def _half_plain(x: Tensor) -> Tensor:
    kept = torch.arange(x.numel()).reshape(x.shape) % 2 == 0
    return torch.where(kept, x, 0.5).to(x.dtype)


def _is_plain(tensor: Tensor) -> bool:
    return bool((tensor == 0.5).all())


def _with_values(program, place, values) -> OperatorProgram:
    calls = tuple(
        (*call[:place], value, *call[place + 1 :])
        for call, value in zip(program.calls, values, strict=True)
    )
    return replace(program, calls=calls)


def _renamed(program: OperatorProgram, names: Names) -> OperatorProgram:

    def renamed(leaf: Ref | Constant) -> Ref | Constant:
        if isinstance(leaf, Constant):
            return leaf
        return Ref(*names.get((leaf.source, leaf.place), leaf[:2]), leaf.shape)

    steps = tuple(
        replace(step, leaves=tuple(map(renamed, step.leaves)))
        for step in program.code.steps
    )
    code = replace(program.code, steps=steps, takes=len(program.calls[0]))
    return replace(program, code=code)


def _needed(program: OperatorProgram) -> OperatorProgram:
    """Return the program without what its results do not need; in-place steps stay."""
    code = program.code
    starts = [sum(s.count for s in code.steps[:i]) for i in range(len(code.steps))]
    needed = {("made", place) for place in code.results}
    kept: list[int] = []
    for number in reversed(range(len(code.steps))):
        step = code.steps[number]
        made = {("made", starts[number] + i) for i in range(step.count)}
        if step.in_place or made & needed:
            kept.insert(0, number)
            needed |= {(ref.source, ref.place) for ref in step.refs()}
    names: Names = {}
    count = 0
    for number in kept:
        for i in range(code.steps[number].count):
            names["made", starts[number] + i] = ("made", count)
            count += 1
    inputs = [i for i in range(code.takes) if ("inputs", i) in needed]
    held = [i for i in range(code.holds) if ("held", i) in needed]
    names |= {("inputs", old): ("inputs", new) for new, old in enumerate(inputs)}
    names |= {("held", old): ("held", new) for new, old in enumerate(held)}
    results = tuple(names["made", place][1] for place in code.results)
    steps = tuple(code.steps[number] for number in kept)
    less = OperatorProgram(
        Code(len(inputs), len(held), steps, results),
        tuple(tuple(call[i] for i in inputs) for call in program.calls),
        tuple(program.held[i] for i in held),
        frozenset(new for new, old in enumerate(inputs) if old in program.dynamic),
    )
    return _renamed(less, names)


def as_test(program: OperatorProgram, recipe: str) -> str:
    """Return the Python source of a test that fails as the program does."""
    code = program.code
    takes = ["self", *(f"x{i}" for i in range(code.takes))]
    lines, count = ["class Model(nn.Module):"], 0
    if code.holds:
        lines += ["    def __init__(self):", "        super().__init__()"]
        for i, x in enumerate(program.held):
            lines.append(f"        self.register_buffer('held_{i}', {_text(x)})")
        lines.append("")
    lines.append(f"    def forward({', '.join(takes)}):")
    for step in code.steps:
        names = "".join(f"y{count + i}, " for i in range(step.count))
        lines.append(f"        {names}*_ = tensors({_call(step)})")
        count += step.count
    results = [f"y{place}" for place in code.results]
    results += [f"self.held_{i}" for i in range(code.holds)]
    lines += [f"        return {', '.join(results)},", "", ""]
    calls = [f"({', '.join(map(_text, call))},)" for call in program.calls]
    lines += [
        "def test_it_is_as_in_eager(tmp_path):",
        "    nan, inf = math.nan, math.inf",
        f"    calls = [{', '.join(calls)}]",
        "    methods = [Method('forward', args=calls[0])]",
        "    each = [('forward', call) for call in calls]",
        f"    run_both(Model(), methods, each, tmp_path, {recipe or 'fp32'!r})",
    ]
    return "\n".join(lines)


def _call(step: Step) -> str:
    leaves = [_leaf(leaf) for leaf in step.leaves]
    given, args, kwargs = tree_unflatten(leaves, step.spec)
    texts = [*map(repr, (given, *args))]
    texts += [f"{name}={value!r}" for name, value in kwargs.items()]
    name = operator(step.name).name
    function = getattr(function_of(step.name, step.in_place), "__name__", "")
    if step.in_place:
        return f"{texts[0]}.{function}({', '.join(texts[1:])})"
    if getattr(torch, name, None) is operator(step.name).op:
        return f"torch.{name}({', '.join(texts)})"
    return f"function_of({step.name!r})({', '.join(texts)})"


class _Text(str):
    """Python source of an argument, whose `repr` is the source itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _leaf(leaf: Ref | Constant) -> object:
    if isinstance(leaf, Constant):
        return leaf.value
    prefix = {"inputs": "x", "held": "self.held_", "made": "y"}[leaf.source]
    whole = f"{prefix}{leaf.place}"
    if leaf.shape is None:
        return _Text(whole)
    count = torch.Size(leaf.shape).numel()
    return _Text(f"{whole}.reshape(-1)[:{count}].reshape({leaf.shape})")


def _text(tensor: Tensor) -> str:
    made = f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype})"
    if tensor.numel() == 0:
        return f"torch.zeros({tuple(tensor.shape)}, dtype={tensor.dtype})"
    if tensor.is_contiguous():
        return made
    given = f"{tuple(tensor.shape)}, {tensor.stride()}, dtype={tensor.dtype}"
    return f"torch.empty_strided({given}).copy_({made})"
