"""Random modules whose buffers can be reached in many ways, compared with eager.

A module has a few buffers and names for parts of them: attributes, list and dictionary
members, plain and slotted objects, closures, second buffers. Its methods write and read
them in place and functionally, with Python numbers and tensors as operands. In: a seed.
Out: the module with its methods and calls; `check` compiles it and compares.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from alias_places import PLACES, Box, Slotted, view_of
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CaptureError, KvcError, StateConflict

SHAPES = ((4,), (2, 4), (2, 2, 3), (1,), ())


@dataclass
class Ref:
    """A name of a tensor in the module: how to read it, and how to assign it."""

    get: Callable[[], Tensor]
    put: Callable[[Tensor], None]
    text: str
    writable: bool = True


class Aliased(nn.Module):
    """A module with random names for its buffers, and random methods."""

    def __init__(self, seed):
        super().__init__()
        self._chance = random.Random(seed)
        self.inner = nn.Module()
        self.box, self.table, self.row = Box(), {}, []
        self.box.deeper = Box()
        self.refs, self.text = [], []
        for i in range(self._chance.randint(1, 3)):
            self._add_buffer(f"b{i}")
        for i in range(self._chance.randint(1, 4)):
            self._add_alias(i)
        self.steps = {f"m{i}": self._steps() for i in range(self._chance.randint(1, 3))}
        del self._chance

    def m0(self, x, n):
        return self._run("m0", x, n)

    def m1(self, x, n):
        return self._run("m1", x, n)

    def m2(self, x, n):
        return self._run("m2", x, n)

    def _run(self, name, x, n):
        seen = []
        for step in self.steps[name]:
            made = step(x, n)
            seen += made if isinstance(made, list) else []
        return [*seen, *(self.get_buffer(b).clone() for b in self.buffer_names)]

    @property
    def buffer_names(self):
        return [n for n in ("b0", "inner.b1", "b2") if n in self.bases]

    def _add_buffer(self, name):
        chance = self._chance
        shape = chance.choice(SHAPES)
        dtype = chance.choice((torch.float32, torch.float32, torch.int64))
        values = torch.arange(1, torch.Size(shape).numel() + 1).reshape(shape).to(dtype)
        owner = self.inner if name == "b1" else self
        if chance.random() < 0.2:
            values = values.mT.contiguous().mT if values.dim() > 1 else values
        owner.register_buffer(name, values * chance.randint(0, 2))
        full = f"inner.{name}" if name == "b1" else name
        self.bases = (*getattr(self, "bases", ()), full)

        def put(value):
            setattr(owner, name, value)

        self.refs.append(Ref(lambda: getattr(owner, name), put, full))

    def _add_alias(self, i):
        name = self._chance.choice(self.bases)
        tensor, text, writable = self._view(self.get_buffer(name))
        where = self._chance.choice(PLACES)
        get, put, place = where(self, i, tensor)
        self.refs.append(Ref(get, put, f"{place} = {name}{text}", writable))
        self.text.append(self.refs[-1].text)

    def _view(self, tensor):
        chance, text, writable = self._chance, "", True
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            made, word = view_of(tensor, chance)
            text, tensor = text + word, made
            writable = writable and "expand" not in word
        return tensor, text, writable

    def _steps(self):
        chance = self._chance
        return [
            chance.choice(_STEPS)(self, chance) for _ in range(chance.randint(1, 4))
        ]

    def ref(self, chance, writable=False):
        return chance.choice([r for r in self.refs if r.writable or not writable])


def _operand(model, chance, like):
    """Return a function of (x, n) that returns a random operand for tensor `like`.

    The operand is a number, a tensor made of an argument, or the sum of another tensor.
    """
    kind = chance.randrange(5)
    number = chance.choice((1, 2, -1, 3, True))
    other = model.ref(chance)
    if kind == 0:
        return lambda x, n: number
    if kind == 1:
        return lambda x, n: torch.full_like(like.get(), number)
    if kind == 2:
        return lambda x, n: n.to(like.get().dtype)
    if kind == 3:
        return lambda x, n: x.sum().to(like.get().dtype)
    return lambda x, n: other.get().sum().clamp(-9, 9).to(like.get().dtype)


def _adds(model, chance):
    ref = model.ref(chance, writable=True)
    operand = _operand(model, chance, ref)
    return lambda x, n: ref.get().add_(operand(x, n))


def _augments(model, chance):
    """Return a step that runs `box.a += x`, which also assigns to `box.a`."""
    ref = model.ref(chance, writable=True)
    operand = _operand(model, chance, ref)

    def step(x, n):
        held = ref.get()
        held += operand(x, n)
        if ref.text.startswith(("self", "box", "row", "table", "inner.a")):
            ref.put(held)

    return step


def _multiplies(model, chance):
    ref = model.ref(chance, writable=True)
    factor = chance.choice((-1, 0, 2, True))
    return lambda x, n: ref.get().mul_(factor)


def _copies(model, chance):
    ref, other = model.ref(chance, writable=True), model.ref(chance)

    def step(x, n):
        new = (other.get().sum() + 1).clamp(-9, 9)
        ref.get().copy_(new.expand(ref.get().shape))

    return step


def _sets(model, chance):
    ref = model.ref(chance, writable=True)
    place, number = chance.choice((0, -1)), chance.randint(-2, 2)

    def step(x, n):
        if ref.get().dim():
            ref.get()[place] = number
        else:
            ref.get().fill_(number)

    return step


def _functional(model, chance):
    ref, other = model.ref(chance, writable=True), model.ref(chance)

    def step(x, n):
        taken = other.get().sum().clamp(-9, 9)  # so that all sums are exact
        new = torch.where(ref.get() > 2, ref.get() - taken, ref.get() + 1)
        ref.get().copy_(new)
        return [new]

    return step


def _reads(model, chance):
    ref = model.ref(chance)
    return lambda x, n: [ref.get() + 1, ref.get().sum()]


def _hands_out(model, chance):
    ref = model.ref(chance)
    return lambda x, n: [ref.get().clone()]


def _shows(model, chance):
    ref = model.ref(chance)
    return lambda x, n: [ref.get()]


# What a step gives back is a result if it is a list.
_STEPS = (
    *(_adds, _augments, _multiplies, _copies, _sets, _functional),
    *(_reads, _hands_out, _shows, _reads, _adds),
)


def reached(thing, path="", seen=None) -> Iterator[tuple[str, object]]:
    """Yield (path, identity or value) of every tensor, array and value of a model."""
    seen = {} if seen is None else seen
    if isinstance(thing, Tensor):
        yield path, (id(thing), thing.data_ptr(), tuple(thing.shape), thing.stride())
        yield path + ".values", thing.detach().clone().contiguous().numpy().tobytes()
    elif isinstance(thing, np.ndarray):
        yield path, thing.tobytes()
    elif isinstance(thing, bool | int | float | str | type(None)):
        yield path, thing
    if isinstance(thing, Tensor) or id(thing) in seen:
        return
    seen[id(thing)] = thing
    parts = dict(vars(thing)) if hasattr(thing, "__dict__") else {}
    if isinstance(thing, dict):
        parts |= {repr(k): v for k, v in thing.items()}
    elif isinstance(thing, list | tuple):
        parts |= dict(enumerate(thing))
    elif isinstance(thing, Slotted):
        parts["held"] = thing.held
    for key, value in parts.items():
        yield f"{path}.{key}", (type(value).__name__, id(value))
        yield from reached(value, f"{path}.{key}", seen)


class Changed(AssertionError):
    """Compiling changed the model."""


class Differs(AssertionError):
    """The bundle's results differ from eager's."""


def check(seed: int, folder: Path, found: Counter, corrupt: bool = False) -> None:
    """Compile the module of a seed, and compare it with eager in four calls.

    `found` counts the outcomes: "right", or the text of a refusal. With `corrupt`, a
    buffer of the eager module is changed, which must be noticed.
    """
    model, eager = Aliased(seed), Aliased(seed)
    chance = random.Random(-seed - 1)
    names = list(model.steps)
    methods = [Method(n, (torch.ones(3), torch.tensor(2))) for n in names]
    before = dict(reached(model))
    refused = None
    try:
        bundle = compile_program(model, methods, "fp32")
    except KvcError as error:
        refused = error
    after = dict(reached(model))
    if before != after:
        changed = sorted(
            k for k in {**before, **after} if before.get(k) != after.get(k)
        )
        raise Changed(f"seed {seed}: {changed[:5]}")
    if refused is not None:
        if not isinstance(refused, CaptureError | StateConflict):
            raise Differs(f"seed {seed}: {type(refused).__name__}: {refused}")
        found[str(refused)[:60]] += 1
        return
    path = folder / "aliased.kvc"
    bundle.save(path)
    with load(path) as program, program.session() as session:
        for turn in range(4):
            name = names[turn % len(names)] if turn < 3 else chance.choice(names)
            x, n = torch.arange(3.0) + turn, torch.tensor(turn)
            with torch.no_grad():
                wanted = getattr(eager, name)(x.clone(), n.clone())
            given = session.call(name, x.numpy(), n.numpy())
            _compare(seed, turn, wanted, given)
            if corrupt and turn == 0:
                buffer = eager.get_buffer(chance.choice(eager.bases))
                buffer[(0,) * buffer.dim()] += 1
    found["right"] += 1


def _compare(seed, turn, wanted, given):
    for i, (want, have) in enumerate(zip(wanted, given, strict=True)):
        have = torch.from_numpy(np.ascontiguousarray(have)).reshape(have.shape)
        if want.dtype != have.dtype or not torch.equal(want, have):
            raise Differs(f"seed {seed}, turn {turn}, result {i}: {want} != {have}")
