"""Random modules with branches and loops, written as text as a user would write them.

Buffers a, b, c float64 [4, 3] are passed to torch.cond, while_loop and scan, nested, in
other shapes and orders, next to code that reads their old contents. They are also
written between these calls. Numbers are whole or halves, so that any order of computing
gives the same bits.
"""

import random
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from viewing_branches import dense

OUTERMOST = 2  # how far the lines of the method itself are indented
BUFFERS = ("self.a", "self.b", "self.c")
# How a value [4, 3] is passed or given back, and how it becomes one again.
FORMS = {
    "{}": "{}",
    "{}.reshape(12)": "{}.reshape(4, 3)",
    "{}.t()": "{}.t()",
    "{}.unsqueeze(0)": "{}.squeeze(0)",
}
EXPRESSIONS = (
    "{v} + {w}",
    "{v} - {w} * 2",
    "{v} * 0.5",
    "{v}.flip(0)",
    "{v}.roll(1, 0)",
    "{v}.clone()",
    "torch.zeros_like({v})",
    "torch.where({v} > {w}, {v}, {w} + 1)",
    "{v}.index_copy(0, at, {w}[:2] + 1)",
    "{v}.index_copy(0, at, {w}[1:3])",
    "{v}.index_add(0, at, {w}[1:3])",
    "{v}.reshape(12).index_copy(0, at * 3, {w}[0, :2]).reshape(4, 3)",
    "{v}.t().index_copy(0, at, {w}.t()[:2]).t()",
    "{v}.unsqueeze(0).index_fill(1, at, 3.0).squeeze(0)",
    "torch.cat([{v}[2:], {w}[:2]])",
)
WRITES = (
    "{v}[1:3] = {w}[:2] + 1",
    "{v}[at] = {w}[:2] * 2",
    "{v}.view(12)[2:5] = {w}[0] + 0.5",
    "{v}.index_copy_(0, at, {w}[:2] - 1)",
    "{v}.add_({w})",
    "{v}.mul_(0.5)",
    "{v}.clamp_(-64, 64)",
)


Body = Callable[..., tuple[Tensor, ...]]


class _Writer:
    """Writes the text of one method; all choices follow from the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0

    def new(self, letter: str = "v") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def expression(self, names: Sequence[str]) -> str:
        v, w = self.chance.choice(names), self.chance.choice(names)
        made = self.chance.choice(EXPRESSIONS).format(v=v, w=w)
        return f"({made}).clamp(-99, 99)" if self.chance.random() < 0.2 else made

    def method(self) -> str:
        self.add(1, "def step(self, p, q, turns, x, at):")
        self.add(2, "x = x * 1")
        names = ["x", *BUFFERS]
        for _ in range(self.chance.randint(1, 3)):
            self.statement(2, names, nested=self.chance.choice((1, 1, 1, 2)))
            if self.chance.random() < 0.6:
                self.state_write(names)
        left = self.chance.sample(names, self.chance.randint(1, min(4, len(names))))
        results = [f"{name} * 1" if name in BUFFERS else name for name in left]
        self.add(2, f"return ({', '.join(results)},)")
        return "\n".join(self.lines)

    def state_write(self, names: list[str]) -> None:
        buffer, value = self.chance.choice(BUFFERS), self.chance.choice(names)
        if self.chance.random() < 0.6:
            self.add(2, f"{buffer}.copy_({value})")
        else:
            text = self.chance.choice(WRITES)
            # A buffer's own rows are read before they are written over.
            self.add(2, text.format(v=buffer, w=f"({value} * 1)"))

    def statement(self, depth: int, names: list[str], nested: int) -> None:
        """Write a statement that makes one or more new values, and add their names."""
        kind = self.chance.random() if nested else 0.9
        if kind < 0.55:
            self.branch(depth, names, nested - 1)
        elif kind < 0.7:
            self.loop(depth, names, nested - 1)
        elif kind < 0.8:
            self.scan(depth, names, nested - 1)
        elif self.chance.random() < 0.3:
            made = self.new()
            self.add(depth, f"{made} = dense({self.chance.choice(names)})")
            write = self.chance.choice(WRITES)
            self.add(depth, write.format(v=made, w=self.chance.choice(names)))
            names.append(made)
        else:
            made = self.new()
            self.add(depth, f"{made} = {self.expression(names)}")
            names.append(made)

    def passed(self, names: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Choose what a branch or loop body gets.

        Returns:
            The expressions that are passed; the names of the body's parameters; the
                lines with which the body begins, which undo a change of shape.
        """
        count = self.chance.randint(1, min(3, len(names)))
        picked = self.chance.sample(list(dict.fromkeys(names)), count)
        if self.chance.random() < 0.25:
            picked.append(f"{picked[0]}.clone()")
        taken = [self.new("t") for _ in picked]
        forms = [self.chance.choice(list(FORMS)) for _ in picked]
        given = [
            form.format(name) if name in BUFFERS or form == "{}" else name
            for form, name in zip(forms, picked, strict=True)
        ]
        first = [
            f"{t} = {FORMS[form].format(t)}"
            for form, name, t in zip(forms, picked, taken, strict=True)
            if name in BUFFERS and form != "{}"
        ]
        return given, taken, first

    def captured(self, depth: int, given: Sequence[str]) -> list[str]:
        """Return the buffers that a body may use without getting them as arguments."""
        free = [b for b in BUFFERS if not any(b in text for text in given)]
        return free if depth == OUTERMOST and self.chance.random() < 0.4 else []

    def body(self, depth, name, taken, first, names, results, nested) -> None:
        self.add(depth, f"def {name}({', '.join(taken)}):")
        for line in first:
            self.add(depth + 1, line)
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            self.statement(depth + 1, names, nested)
        self.add(depth + 1, f"return ({', '.join(results(names))},)")

    def formed(self, forms: Sequence[str], made: Sequence[str]) -> list[str]:
        pairs = zip(forms, made, strict=True)
        return [f"dense({form.format(f'({e})')})" for form, e in pairs]

    def unform(self, depth: int, forms: Sequence[str], names: Sequence[str]) -> None:
        for form, name in zip(forms, names, strict=True):
            if form != "{}":
                self.add(depth, f"{name} = {FORMS[form].format(name)}")

    def branch(self, depth: int, names: list[str], nested: int) -> None:
        given, taken, first = self.passed(names)
        more = self.captured(depth, given)
        forms = [
            self.chance.choice(list(FORMS))
            for _ in range(self.chance.choice((1, 1, 2)))
        ]

        def results(inside: list[str]) -> list[str]:
            made = [self.expression(inside) for _ in forms]
            if self.chance.random() < 0.4:
                made[0] = self.chance.choice(inside)
            return self.formed(forms, made)

        bodies = [self.new("f") for _ in "ab"]
        for name in bodies:
            self.body(depth, name, taken, first, [*taken, *more], results, nested)
        made = [self.new() for _ in forms]
        pred = self.chance.choice(["p", "q", "p & q"])
        call = f"cond({pred}, {', '.join(bodies)}, ({', '.join(given)},))"
        self.add(depth, f"({', '.join(made)},) = {call}")
        self.unform(depth, forms, made)
        names += made

    def loop(self, depth: int, names: list[str], nested: int) -> None:
        picked = self.chance.sample(list(dict.fromkeys(names)), 1)
        if self.chance.random() < 0.4:
            picked.append(self.chance.choice(names))
        forms = [self.chance.choice(list(FORMS)) for _ in picked]
        carried = [self.new("t") for _ in picked]
        first = [
            f"{t} = {FORMS[form].format(t)}"
            for form, t in zip(forms, carried, strict=True)
        ]

        def results(inside: list[str]) -> list[str]:
            made = [self.expression(inside) for _ in forms]
            return ["i + 1", *self.formed(forms, made)]

        body, taken = self.new("f"), ["i", *carried]
        more = self.captured(depth, picked)
        self.body(depth, body, taken, first, [*carried, *more], results, nested)
        starts = [f"dense({f.format(n)})" for f, n in zip(forms, picked, strict=True)]
        made = [self.new() for _ in forms]
        test = f"lambda {', '.join(taken)}: i < turns"
        start = f"(torch.zeros((), dtype=torch.int64), {', '.join(starts)})"
        self.add(depth, f"(_, {', '.join(made)}) = while_loop({test}, {body}, {start})")
        self.unform(depth, forms, made)
        names += made

    def scan(self, depth: int, names: list[str], nested: int) -> None:
        init, through = self.chance.choice(names), self.chance.choice(names)
        body, held, row = self.new("f"), self.new("t"), self.new("t")
        first = [f"{row} = {row} + torch.zeros_like({held})"]

        def results(inside: list[str]) -> list[str]:
            last = f"dense({self.expression(inside)})"
            return [last, f"dense(({self.expression(inside)})[1])"]

        more = self.captured(depth, [init, through])
        inside = [held, row, *more]
        self.body(depth, body, [held, row], first, inside, results, nested)
        made = [self.new(), self.new()]
        call = f"scan({body}, dense({init}), dense({through}))"
        self.add(depth, f"({', '.join(made)}) = {call}")
        names += made


def source_of(seed: int) -> str:
    return _Writer(seed).method()


def _cond(p, yes, no, given) -> tuple[Tensor, ...]:
    return (yes if p else no)(*given)


def _while_loop(test: Body, body: Body, given: Sequence[Tensor]) -> Sequence[Tensor]:
    while test(*given):
        given = body(*given)
    return given


def _scan(body: Body, held: Tensor, through: Tensor) -> tuple[Tensor, Tensor]:
    stacked = []
    for row in through:
        held, made = body(held, row)
        stacked.append(made)
    return held, torch.stack(stacked)


TRACED = {"cond": torch.cond, "while_loop": torch.while_loop, "scan": scan}
PLAIN = {"cond": _cond, "while_loop": _while_loop, "scan": _scan}


def random_module(seed: int, control: Mapping[str, object] = TRACED) -> nn.Module:
    """Return the random module of a seed, with a method step(p, q, turns, x, at).

    `control` has the functions for branches and loops: torch's own (`TRACED`), or
    `PLAIN`, which are written in Python.
    """
    found: dict[str, type[nn.Module]] = {}
    text = f"class Random(nn.Module):\n{source_of(seed)}\n"
    names = {"torch": torch, "nn": nn, "dense": dense, **control}
    exec(compile(text, f"<seed {seed}>", "exec"), names, found)
    module = found["Random"]()
    for i, name in enumerate("abc"):
        start = torch.arange(12, dtype=torch.float64).reshape(4, 3) - 3 * i
        module.register_buffer(name, start)
    return module


def arguments(number: int) -> tuple[Tensor, ...]:
    """Return the arguments of call `number`, one of four.

    Returns:
        p, q: bools. turns: int64 number of turns. x: float64 [4, 3]. at: int64 [2], two
            row numbers.
    """
    x = torch.arange(12, dtype=torch.float64).reshape(4, 3) * 0.5 - number
    flags = (torch.tensor(bool(number & bit)) for bit in (1, 2))
    at = torch.tensor([[0, 2], [2, 1], [1, 0], [2, 0]][number])
    return (*flags, torch.tensor(number), x, at)
