"""Draws the steps of a random chain, each of which eager takes for all calls.

In: a program without lines, and a source of chance. Out: its lines. Whether eager
leaves open what a write does is found by where in memory its elements are.
"""

import itertools
import random
from collections.abc import Sequence

import torch
from chain_program import Program
from chain_steps import Named, made, read, view
from chain_writes import Write, write
from torch import Tensor

TRIES = 25


def addresses(t: Tensor) -> Tensor:
    """Return where in memory each element of a tensor is."""
    places = torch.tensor(t.data_ptr())
    for axis, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        more = torch.arange(size) * stride * t.element_size()
        places = places + more.reshape(-1, *[1] * (t.dim() - axis - 1))
    return places.expand(t.shape)


def is_undefined(
    target: Tensor, sources: Sequence[Tensor], elementwise: bool = True
) -> bool:
    """Tell whether a write's result depends on the order of its elements."""
    to = addresses(target)
    if to.unique().numel() < to.numel():
        return True
    for source in sources:
        of = addresses(source)
        if not torch.isin(of, to).any():
            continue
        same = elementwise and target.dtype == source.dtype
        if not (same and torch.equal(of.expand_as(to), to)):
            return True
    return False


class Drawer:
    """Draws the steps of a method or a body, and runs them for all calls.

    Attributes:
        lines: of the method or the body, so far.
        names: tensors that the next step may take.
        undefined: whether eager leaves open what a write does.
        outside: whether a body writes what it has not made itself.
    """

    def __init__(self, program: Program, chance: random.Random) -> None:
        self.program, self.chance = program, chance
        self.lines: list[str] = []
        self.names = [*program.buffers, "x0"]
        self.undefined = self.outside = False
        self._roots = tuple(self.names)
        self._before: list[str] = []
        self._into = ""  # the name of what reads are added to in a body
        self._outer: tuple[str, ...] = ()  # names that a body captures
        self._own = False
        self._number = itertools.count()
        self._again()

    def within(self, first: Sequence[str], into: str, own: bool) -> "Drawer":
        """Return a drawer of a body, which begins with some lines.

        With `own`, the body writes only what it has made.
        """
        inner = object.__new__(Drawer)
        inner.program, inner.chance = self.program, self.chance
        inner._number, inner._into, inner._own = self._number, into, own
        inner.lines, inner.undefined, inner.outside = [], False, False
        inner._before = [*self._before, *self.lines, *first]
        inner.names, inner._roots = [*self.names], (*self.names, *self._roots)
        inner._outer = tuple(self.names)
        inner._again()
        return inner

    def new_name(self, letter: str = "t") -> str:
        return f"{letter}{next(self._number)}"

    def rounds(self, count: int) -> None:
        """Draw some chains of views with writes and reads."""
        for _ in range(count):
            self._chain()
            for _ in range(self.chance.randint(0, 2)):
                self._read()

    def attempt(self, line: str) -> bool:
        """Run a line for all calls; go back to where it was if eager refuses it."""
        try:
            for names in self._all:
                exec(line, names)
        except Exception:
            self._again()
            return False
        self.lines.append(line)
        return True

    def named(self, name: str) -> Named | None:
        """Return what is known of a tensor; None if its rank or dtype varies."""
        found = [names[name] for names in self._all]
        shapes = [tuple(t.shape) for t in found]
        kinds = {(t.dim(), t.dtype) for t in found}
        if len(kinds) > 1 or max(t.numel() for t in found) > 200:
            return None
        axes = zip(*shapes, strict=True)
        sizes = (some[0] if len(set(some)) == 1 else None for some in axes)
        return Named(name, tuple(sizes), found[0].dtype)

    def all_named(self) -> list[Named]:
        known = (self.named(name) for name in self.names)
        return [one for one in known if one is not None and len(one.sizes) < 6]

    def _again(self) -> None:
        self._all = [self.program.names(i) for i in range(len(self.program.calls))]
        for names in self._all:
            exec("\n".join((*self._before, *self.lines)), names)

    def _chain(self) -> None:
        chance = self.chance
        name = chance.choice(self._starts())
        if chance.random() < 0.35:
            name = self._add(made, name)
        for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4))):
            name = self._add(view, name)
        self._write(name)
        if chance.random() < 0.3:
            self._write(chance.choice(self.names))

    def _starts(self) -> list[str]:
        """Return names that a chain may begin with."""
        if self._own and self.chance.random() < 0.85:
            return self.names[len(self._outer) :]
        return self.names[-4:] + self.names[:3]

    def _add(self, draw, name: str) -> str:
        """Draw a tensor that is made of a named one; return its name."""
        new = self.new_name()
        for _ in range(TRIES):
            t, others = self.named(name), self.all_named()
            try:
                line = f"{new} = {draw(self.chance, t, others)}"
            except (IndexError, ValueError, ZeroDivisionError):
                continue
            if not self.attempt(line):
                continue
            if self._is_fit(new):
                self.names.append(new)
                return new
            self._drop()
        return name

    def _is_fit(self, name: str) -> bool:
        known = self.named(name)
        if known is None or len(known.sizes) > 5:
            return False
        empty = any(names[name].numel() == 0 for names in self._all)
        return not empty or self.chance.random() < 0.1

    def _drop(self) -> None:
        self.lines.pop()
        self._again()

    def _write(self, name: str) -> None:
        for _ in range(TRIES):
            t, others = self.named(name), self.all_named()
            try:
                step = write(self.chance, t, others)
            except (IndexError, ValueError, ZeroDivisionError):
                continue
            if self._may_write(step, name) and self.attempt(step.text):
                if step.target or all(self.named(one) for one in self.names):
                    return
                self._drop()

    def _may_write(self, step: Write, name: str) -> bool:
        if not step.target:  # it changes a shape, also that of other names of it
            roots = [names[root] for names in self._all for root in self._roots]
            return all(names[name] is not root for names in self._all for root in roots)
        outside = self._reaches_outer(name)
        if outside and self._own:
            return False
        try:
            undefined = any(self._is_undefined(step, names) for names in self._all)
        except Exception:
            return False
        if undefined and self.chance.random() > 0.06:
            return False
        self.undefined |= undefined
        self.outside |= outside
        return True

    def _reaches_outer(self, name: str) -> bool:
        def memory(t: Tensor) -> int:
            return t.untyped_storage().data_ptr()

        names = self._all[0]
        held = {memory(names[one]) for one in self._outer}
        return memory(names[name]) in held

    @staticmethod
    def _is_undefined(step: Write, names: dict[str, object]) -> bool:
        sources = [eval(source, names) for source in step.sources]
        return is_undefined(eval(step.target, names), sources, step.elementwise)

    def _read(self) -> None:
        name = self.chance.choice(self.names[-6:] + self.names[:2])
        if self._into:
            part = f"{name}.to(torch.float32).clamp(-9, 9).sum()"
            self.attempt(f"{self._into} = {self._into} + {part}")
        elif known := self.named(name):
            self.attempt(f"r.append({read(self.chance, known)})")
