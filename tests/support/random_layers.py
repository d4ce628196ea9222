"""Random modules of pieces that passes of recipes look for, and of similar pieces.

A seed gives a module whose `forward` takes x float32 [1, seq, width]. Each piece makes
another such tensor of earlier ones; some of the tensors are returned. Some pieces are
what a pass rewrites. Others differ from that in one respect: a factor, an axis, a sign,
a dtype.
"""

import math
import random
from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method

WIDTHS = (1, 2, 4, 6, 32, 64)
MOST = 8
WIDTH = 32
Pool = list[Tensor]
Piece = Callable[[Pool], Tensor]


class RandomLayers(nn.Module):
    """A module of `count` random pieces; `said` has their names, in order."""

    def __init__(self, seed: int, count: int = 6) -> None:
        super().__init__()
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        self._widths = [WIDTH]
        self._matrices: list[nn.Parameter] = []
        self._pieces: list[Piece] = []
        self.said: list[str] = []
        for _ in range(count):
            make = self._random.choice(PIECES)
            width, piece = make(self)
            self.said.append(make.__name__)
            self._pieces.append(piece)
            self._widths.append(width)
        last = range(len(self._widths))
        self._results = sorted(self._random.sample(last, min(3, len(last))))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pool = [x]
        for piece in self._pieces:
            pool.append(piece(pool))
        return tuple(pool[i] for i in {*self._results, len(pool) - 1})

    def one_of(self, *choices: object) -> object:
        return self._random.choice(choices)

    def some(self) -> tuple[int, int]:
        """Return the place and width of a random earlier tensor, mostly the last."""
        last = len(self._widths) - 1
        place = last if self._random.random() < 0.6 else self._random.randint(0, last)
        return place, self._widths[place]

    def same(self, width: int) -> int | None:
        """Return the place of a random earlier tensor of a width, None for no such."""
        places = [i for i, found in enumerate(self._widths) if found == width]
        return self._random.choice(places) if places else None

    def matrix(self, *dims: int) -> nn.Parameter:
        """Return a weight of these dims, new or one that other pieces use."""
        known = [m for m in self._matrices if m.shape == dims]
        if known and self._random.random() < 0.4:
            return self._random.choice(known)
        made = nn.Parameter(torch.randn(dims) / math.sqrt(max(1, dims[-1])))
        self.register_parameter(f"m{len(self._matrices)}", made)
        self._matrices.append(made)
        return made

    def turned(self, rows: int, columns: int) -> Callable[[], Tensor]:
        """Return a function that returns a weight [rows, columns], or a transpose."""
        swap, swap_last = (lambda x: x.T), (lambda x: x.transpose(-1, -2))
        others = (lambda x: x.t()), (lambda x: x.permute(1, 0))
        turns = self._random.choice(
            [[], [], [swap], [others[0]], [swap_last], [others[1]], [swap, swap_last]]
        )
        dims = (columns, rows) if len(turns) % 2 else (rows, columns)
        weight = self.matrix(*dims)
        return lambda: reduce(lambda found, turn: turn(found), turns, weight)

    def piece(self, place: int, *ways: Callable[[Tensor], Tensor]) -> Piece:
        way = self._random.choice(ways)
        return lambda pool: way(pool[place])

    def width(self) -> int:
        return self._random.choice(WIDTHS)


Made = tuple[int, Piece]


def linear(of: RandomLayers) -> Made:
    (place, width), out = of.some(), of.width()
    weight, bias = of.turned(out, width), of.one_of(None, of.matrix(out))
    return out, lambda pool: functional.linear(pool[place], weight(), bias)


def product(of: RandomLayers) -> Made:
    """A product with a matrix [in, out], by one of torch's functions for it."""
    (place, width), out = of.some(), of.width()
    weight, bias = of.turned(width, out), of.matrix(*of.one_of((out,), (1, out), (1,)))
    factors = of.one_of({}, {}, {"alpha": 0.5}, {"beta": 2.0}, {"beta": 0})

    def added(x: Tensor) -> Tensor:
        flat = x.reshape(-1, width)
        return torch.addmm(bias, flat, weight(), **factors).view(1, -1, out)

    return out, of.piece(
        place,
        lambda x: x @ weight(),
        lambda x: torch.mm(x.reshape(-1, width), weight()).view(1, -1, out),
        added,
        added,
        lambda x: torch.bmm(x, weight()[None]) + bias,
        lambda x: torch.add(x @ weight(), bias),
    )


def of_weights(of: RandomLayers) -> Made:
    """A product of two weights, or with a vector; it must not count as a layer."""
    place, width = of.some()
    a, b = of.turned(width, 4), of.turned(4, 6)
    vector = of.matrix(width)
    out, way = of.one_of(
        (6, lambda x: x @ (a() @ b())),
        (1, lambda x: (x @ vector)[..., None]),
        (6, lambda x: (b().T @ a().T @ x.transpose(1, 2)).transpose(1, 2)),
    )
    return out, lambda pool: way(pool[place])


def gated(of: RandomLayers) -> Made:
    """A gated linear unit, or something similar."""
    (place, width), out = of.some(), of.width()
    gate, up = of.matrix(out, width), of.matrix(of.one_of(out, out, 1), width)
    name = of.one_of("silu", "silu", "gelu", "tanh", "sigmoid", "relu")
    swapped, again, whole = (of.one_of(False, False, True) for _ in "abc")

    def active(x: Tensor) -> Tensor:
        if name == "tanh":
            return functional.gelu(x, approximate="tanh")
        found: Tensor = getattr(functional, name)(x)
        return found

    def run(pool: Pool) -> Tensor:
        x = pool[place]
        if whole and up.shape == gate.shape:
            y, other = functional.linear(x, torch.cat((gate, up))).chunk(2, -1)
        else:
            y, other = functional.linear(x, gate), functional.linear(x, up)
        found = active(y)
        result = other * found if swapped else found * other
        return result + found if again else result

    return out, run


class Rotation:
    """Rotary embeddings in several spellings, or something similar."""

    def __init__(self, of: RandomLayers, place: int, width: int) -> None:
        heads = of.one_of(*(h for h in (1, 2, 4) if width % (2 * h) == 0))
        self.place, self.split = place, (heads, width // heads)
        self.half = self.split[1] // 2
        self.spelling = of.one_of(
            "slices", "chunk", "split", "halves", "halves", "stack"
        )
        self.wrong = of.one_of(
            *[""] * 5, "sign", "order", "factor", "axis", "table", "wide"
        )
        self.heads_first, self.one_table = of.one_of(True, False), of.one_of(*"  x")
        steps = 0.7 ** torch.arange(self.half).float()
        self.angles = torch.outer(torch.arange(MOST), steps)

    def __call__(self, pool: Pool) -> Tensor:
        x = pool[self.place].unflatten(-1, self.split)
        x = x.transpose(1, 2) if self.heads_first else x
        turned = self.turned(x, *self.tables(pool[self.place].shape[1]))
        turned = turned.float()
        return (turned.transpose(1, 2) if self.heads_first else turned).flatten(2)

    def tables(self, count: int) -> tuple[Tensor, Tensor]:
        angles = self.angles[:count]
        if self.spelling not in ("halves", "stack"):
            angles = angles.repeat(1, 2)
        if self.wrong == "table":
            angles = angles[:, :1]
        if not self.heads_first:
            angles = angles[:, None]
        if self.one_table == "x":
            angles = angles[None]
        return angles.cos(), angles.sin()

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        match self.spelling:
            case "chunk":
                found = x.chunk(2, -1)
            case "split":
                found = x.split(self.half, -1)
            case _:
                found = x[..., : self.half], x[..., self.half :]
        return tuple(found[::-1] if self.wrong == "order" else found)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.wrong == "wide":
            x, cos, sin = x.double(), cos.double(), sin.double()
        first, second = self.parts(x)
        alpha = 2 if self.wrong == "factor" else 1
        if self.spelling in ("halves", "stack"):
            difference = torch.sub(first * cos, second * sin, alpha=alpha)
            total = sin * first + cos * second
            if self.wrong == "sign":
                total = second * cos - first * sin
            if self.spelling == "halves":
                return torch.cat((difference, total), -1)
            return torch.stack((difference, total), -1).flatten(-2)
        across = torch.cat((second if self.wrong == "sign" else -second, first), -1)
        if self.wrong == "axis":
            across = torch.cat((-x, x), 0)[:1]
        return torch.add(x * cos, across * sin, alpha=alpha)


def rotated(of: RandomLayers) -> Made:
    place, width = of.some()
    if width % 2:
        return width, lambda pool: torch.cat((-pool[place], pool[place]), -1)[..., :1]
    return width, Rotation(of, place, width)


def normed(of: RandomLayers) -> Made:
    place, width = of.some()
    weight = of.matrix(width)
    return width, of.piece(
        place,
        lambda x: functional.rms_norm(x, (width,), weight),
        lambda x: weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)),
        lambda x: functional.layer_norm(x, (width,), weight),
        lambda x: x.softmax(-1),
    )


def added(of: RandomLayers) -> Made:
    """A sum with another tensor (a residual connection), a difference, or a product."""
    place, width = of.some()
    other = of.same(width)
    way = of.one_of(
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y.tanh(),
        lambda x, y: torch.add(x, y, alpha=0.5),
        lambda x, y: 2 - x * 0.5,
    )
    return width, lambda pool: way(pool[place], pool[other])


def narrowed(of: RandomLayers) -> Made:
    """A layer that is computed in another dtype, or whose input is rounded."""
    (place, width), out = of.some(), of.width()
    weight = of.matrix(out, width)

    def cast(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        return lambda x: functional.linear(x.to(dtype), weight.to(dtype)).float()

    def stepped(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            steps = (x.tanh() * 40).round().to(dtype)
            return functional.linear((steps * 2 + steps).float() / 40, weight)

        return run

    def gate(x: Tensor) -> Tensor:
        y = functional.linear(x, weight).double()
        return (functional.silu(y) * y).float()

    casts = map(cast, (torch.half, torch.bfloat16, torch.double))
    return out, of.piece(place, *casts, stepped(torch.int8), stepped(torch.int32), gate)


def emptied(of: RandomLayers) -> Made:
    """A layer with an empty input or weight, next to an ordinary one."""
    (place, width), out = of.some(), of.width()
    weight, none = of.matrix(out, width), nn.Parameter(torch.zeros(0, width))
    of.register_parameter(f"none{len(of.said)}", none)

    def gate(x: Tensor, y: Tensor) -> Tensor:
        made = functional.linear(x, none)
        return y + (functional.silu(made) * made).sum(-1, keepdim=True)

    way = of.one_of(
        lambda x, y: torch.cat((functional.linear(x[:, :0], weight), y), 1),
        lambda x, y: torch.cat((functional.linear(x, none), y), -1),
        lambda x, y: y + functional.linear(x[..., :0], weight[:, :0]),
        gate,
    )
    return out, lambda pool: way(pool[place], functional.linear(pool[place], weight))


def looked_up(of: RandomLayers) -> Made:
    """Rows of a table, which may also be the weight of a layer."""
    place, width = of.some()
    table, tied = of.matrix(6, width), of.one_of(True, False)

    def run(pool: Pool) -> Tensor:
        x = pool[place]
        ids = torch.arange(MOST)[: x.shape[1]] % 6
        rows = x + functional.embedding(ids, table)
        return functional.linear(rows, table) if tied else rows

    return (6 if tied else width), run


def moved(of: RandomLayers) -> Made:
    """A layer whose input or output is a view: transposed, expanded or sliced."""
    (place, width), out = of.some(), of.width()
    weight = of.matrix(out, width)

    def layer(x: Tensor) -> Tensor:
        return functional.linear(x, weight)

    def expanded(x: Tensor) -> Tensor:
        y = layer(x[:, :1].expand(1, 3, width))
        return y.sum(1, keepdim=True) + layer(x)

    return out, of.piece(
        place,
        lambda x: layer(x[:, None, :, None])[:, 0, :, 0],
        lambda x: layer(x.transpose(0, 1)).transpose(0, 1),
        expanded,
        lambda x: functional.linear(x, weight[:, :width]),
        lambda x: layer(x).relu() + layer(x).sigmoid(),
        lambda x: (weight @ x.transpose(1, 2)).transpose(1, 2),
    )


def attended(of: RandomLayers) -> Made:
    """Attention among the rows of a tensor; layers make queries, keys and values."""
    place, width = of.some()
    q, k, v = (of.matrix(8, width) for _ in "qkv")
    causal = of.one_of(True, False)

    def run(pool: Pool) -> Tensor:
        x = pool[place]
        heads = (
            functional.linear(x, w).unflatten(-1, (2, 4)).transpose(1, 2)
            for w in (q, k, v)
        )
        y = functional.scaled_dot_product_attention(*heads, is_causal=causal)
        return y.transpose(1, 2).flatten(2)

    return 8, run


def of_experts(of: RandomLayers) -> Made:
    (place, width), out = of.some(), of.width()
    weight, turned = of.matrix(3, out, width), of.one_of(True, False)
    bias = of.one_of(None, of.matrix(3, out))

    def run(pool: Pool) -> Tensor:
        rows = pool[place][0]
        which = torch.arange(MOST)[: rows.shape[0]] % 3
        mats = weight.transpose(1, 2).contiguous() if turned else weight
        return torch.ops.kvc.expert_linear(rows, mats, which, bias, turned)[None]

    return out, run


PIECES = (
    linear, linear, product, product, of_weights, gated, gated, rotated, rotated,
    rotated, normed, added, added, narrowed, emptied, looked_up, moved, moved,
    attended, of_experts,
)  # fmt: skip


def inputs(count: int, seed: int = 0) -> Tensor:
    """Return a random input x float32 [1, count, WIDTH]."""
    made = torch.Generator().manual_seed(1000 * seed + count)
    return torch.randn(1, count, WIDTH, generator=made)


def layers_method() -> Method:
    return Method("forward", args=(inputs(3),), dynamic={"x": {1: Dim("seq", 1, MOST)}})
