"""Models of one attention layer over tokens, each with another kind of cache.

All models have the same weights, so that one reference without a cache serves for all
of them: it returns the logits [1, seq, vocab] of tokens int64 [1, seq]. `prefill` takes
any number of tokens, `decode` takes one token.
"""

from collections.abc import Callable

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method

VOCAB, DIM, HEADS, SLOTS, WINDOW = 16, 8, 2, 48, 6
WIDTH = DIM // HEADS
TOKENS = torch.tensor([[3, 1]])
EMPTY = torch.zeros(1, 1, SLOTS, WIDTH)


class OneLayer(Buffers):
    """Reference model without a cache; two query heads share one key head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.tokens, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(SLOTS, DIM)
        self.q, self.kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * WIDTH)
        self.out = nn.Linear(DIM, VOCAB)

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        return self.tokens(tokens) + self.places(places)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [1, heads, seq, width], keys and values [1, 1, seq, width]."""
        k, v = self.kv(x)[:, None].chunk(2, dim=-1)
        return self.q(x).view(1, -1, HEADS, WIDTH).transpose(1, 2), k, v

    def finish(self, y: Tensor) -> Tensor:
        return self.out(y.transpose(1, 2).reshape(1, -1, DIM))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        y = functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        return self.finish(y)

    def sees(self, ago: Tensor, places: Tensor) -> Tensor:
        """Tell which keys a query sees.

        Args:
            ago: the position of the query minus the position of the key.
            places: the positions of the keys.
        """
        return ago >= 0

    def reference(
        self, tokens: Tensor, kept: Callable[[Tensor], Tensor] = lambda x: x
    ) -> Tensor:
        """Return the logits of all tokens, computed without a cache.

        Args:
            tokens: int64 [1, seq].
            kept: returns keys or values as a cache would store them, for example
                rounded.
        """
        places = torch.arange(tokens.shape[1])
        q, k, v = self.project(self.embed(tokens, places))
        seen = self.sees(places[:, None] - places, places)
        return self.attend(q, kept(k), kept(v), seen)


class Linear(OneLayer, k=EMPTY, v=EMPTY, position=ZERO):
    """Model with its own cache, for `kvc.cache_update` and `kvc.attention`."""

    def begin(self, tokens: Tensor) -> tuple[Tensor, ...]:
        start = self.position.clone()
        places = start + torch.arange(tokens.shape[1])
        return start, *self.project(self.embed(tokens, places))

    def write(self, k: Tensor, v: Tensor, start: Tensor, *how: object) -> None:
        self.k.copy_(torch.ops.kvc.cache_update(self.k, k, start, *how))
        self.v.copy_(torch.ops.kvc.cache_update(self.v, v, start, *how))
        self.position.add_(k.shape[how[0] if how else 2])

    def prefill(self, tokens: Tensor) -> Tensor:
        start, q, k, v = self.begin(tokens)
        self.write(k, v, start)
        end = start + tokens.shape[1]
        return self.finish(torch.ops.kvc.attention(q, self.k, self.v, end))

    def decode(self, token: Tensor) -> Tensor:
        return self.prefill(token)


class IndexCopy(OneLayer, k=EMPTY, v=EMPTY):
    """Model that writes its cache by `index_copy_`, at the session's positions."""

    def prefill(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        q, k, v = self.project(self.embed(tokens, input_pos))
        self.k.index_copy_(2, input_pos, k)
        self.v.index_copy_(2, input_pos, v)
        seen = torch.arange(SLOTS) <= input_pos[:, None]
        return self.attend(q, self.k, self.v, seen)

    def decode(self, token: Tensor, input_pos: Tensor) -> Tensor:
        return self.prefill(token, input_pos)


class IndexPut(IndexCopy):
    """Model that writes its cache by index assignment, at the session's positions."""

    def prefill(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        q, k, v = self.project(self.embed(tokens, input_pos))
        self.k[:, :, input_pos] = k
        self.v[:, :, input_pos] = v
        seen = torch.arange(SLOTS) <= input_pos[:, None]
        return self.attend(q, self.k, self.v, seen)


class Slices(OneLayer, k=EMPTY, v=EMPTY, position=torch.zeros((), dtype=torch.int64)):
    """Model that writes its cache by slice assignment, at its own position."""

    def prefill(self, tokens: Tensor) -> Tensor:
        y = self.write(tokens, self.position)
        self.position += tokens.shape[1]
        return y

    def decode(self, token: Tensor) -> Tensor:
        return self.prefill(token)

    def write(self, tokens: Tensor, position: Tensor) -> Tensor:
        start, seq = position.item(), tokens.shape[1]
        torch._check(start >= 0)
        torch._check(start + seq <= SLOTS)
        places = start + torch.arange(seq)
        q, k, v = self.project(self.embed(tokens, places))
        self.k[:, :, start : start + seq] = k
        self.v.narrow(2, start, seq).copy_(v)
        return self.attend(q, self.k, self.v, torch.arange(SLOTS) <= places[:, None])


class SlicesWhereTold(Slices):
    """Model like `Slices`, but with a position from the session, not its own."""

    def prefill(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        return self.write(tokens, input_pos)

    def decode(self, token: Tensor, input_pos: Tensor) -> Tensor:
        return self.write(token, input_pos)


class Append(OneLayer):
    """Model whose past is an argument and a result, and grows by `torch.cat`."""

    def start(self, tokens: Tensor) -> dict[str, Tensor]:
        none = torch.zeros(1, 1, 0, WIDTH)
        return self.prefill(tokens, none, none)

    def prefill(self, tokens, past_k, past_v) -> dict[str, Tensor]:
        length, seq = past_k.shape[2], tokens.shape[1]
        places = length + torch.arange(seq)
        q, k, v = self.project(self.embed(tokens, places))
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        seen = places[:, None] >= torch.arange(length + seq)
        return {"logits": self.attend(q, k, v, seen), "k": k, "v": v}

    def decode(self, token, past_k, past_v) -> dict[str, Tensor]:
        return self.prefill(token, past_k, past_v)


class Shifting(
    OneLayer,
    k=torch.zeros(1, 1, WINDOW, WIDTH),
    v=torch.zeros(1, 1, WINDOW, WIDTH),
    count=ZERO,
):
    """Model that attends only to the last keys and values, in shifting buffers."""

    def prefill(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        places = self.count + torch.arange(seq)
        q, k, v = self.project(self.embed(tokens, places))
        k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        of_keys = self.count - WINDOW + torch.arange(WINDOW + seq)
        y = self.attend(q, k, v, self.sees(places[:, None] - of_keys, of_keys))
        self.k.copy_(k[:, :, -WINDOW:])
        self.v.copy_(v[:, :, -WINDOW:])
        self.count.add_(seq)
        return y

    def decode(self, token: Tensor) -> Tensor:
        return self.prefill(token)

    def sees(self, ago: Tensor, places: Tensor) -> Tensor:
        return (ago >= 0) & (ago <= WINDOW) & (places >= 0)


class Recurrent(OneLayer, h=torch.zeros(1, 1, WIDTH, WIDTH), count=ZERO):
    """Model with linear attention: for each token, h = 0.9 * h + k v^T and y = q h."""

    def prefill(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        steps = torch.arange(seq)
        q, k, v = self.project(self.embed(tokens, self.count + steps))
        distance = steps[:, None] - steps
        fading = torch.where(distance >= 0, 0.9 ** distance.clamp(min=0), 0.0)
        since = 0.9 ** (steps + 1)[:, None]
        y = (q @ k.transpose(2, 3) * fading) @ v + (q @ self.h) * since
        left = 0.9 ** (seq - 1 - steps)[:, None]
        kept = self.h * since[-1]
        self.h.copy_(kept + (k * left).transpose(2, 3) @ v)
        self.count.add_(seq)
        return self.finish(y)

    def decode(self, token: Tensor) -> Tensor:
        q, k, v = self.project(self.embed(token, self.count))
        self.h.mul_(0.9).add_(k.transpose(2, 3) @ v)
        self.count.add_(1)
        return self.finish(q @ self.h)

    def reference(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens, torch.arange(tokens.shape[1]))
        q, k, v = self.project(x)
        h, rows = torch.zeros(1, 1, WIDTH, WIDTH), []
        for i in range(tokens.shape[1]):
            h = 0.9 * h + k[:, :, i : i + 1].transpose(2, 3) @ v[:, :, i : i + 1]
            rows.append(q[:, :, i : i + 1] @ h)
        return self.finish(torch.cat(rows, 2))


class RecurrentWhereTold(Recurrent):
    """The model `Recurrent` with a position from the session."""

    def prefill(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        self.count.copy_(input_pos)
        return super().prefill(tokens)

    def decode(self, token: Tensor, input_pos: Tensor) -> Tensor:
        self.count.copy_(input_pos)
        return super().decode(token)


SEQ = Dim("seq", 1, SLOTS)
PAST = Dim("past", 0, SLOTS)


def _pair(many: tuple, one: tuple, sizes: dict, **options: object) -> list[Method]:
    prefill = Method(
        "prefill", args=many, dynamic={"tokens": {1: SEQ}} | sizes, **options
    )
    fixed = {name: dims for name, dims in sizes.items() if SEQ not in dims.values()}
    return [prefill, Method("decode", args=one, dynamic=fixed, **options)]


def simple_methods() -> list[Method]:
    """Return the methods of models that store their past in buffers."""
    return _pair((TOKENS,), (TOKENS[:, :1],), {})


def placed_methods() -> list[Method]:
    """Return the methods of `IndexCopy`."""
    some, one = (TOKENS, torch.tensor([0, 1])), (TOKENS[:, :1], torch.tensor([0]))
    return _pair(some, one, {"input_pos": {0: SEQ}}, position="input_pos")


def told_methods() -> list[Method]:
    """Return the methods of models to which a session gives the position of a call.

    A call gets one position, for any number of tokens.
    """
    position = torch.tensor([0])
    some, one = (TOKENS, position), (TOKENS[:, :1], position)
    return _pair(some, one, {}, position="input_pos")


def append_methods(carried: bool = True, start: bool = False) -> list[Method]:
    """Return the methods of `Append`.

    Args:
        carried: whether the past is a state; if not, the caller passes it.
        start: whether to add a method for the first tokens, which takes no past.
    """
    past = torch.zeros(1, 1, 3, WIDTH)
    pasts, sizes = (past, past * 1), {"past_k": {2: PAST}, "past_v": {2: PAST}}
    carry = {"past_k": "k", "past_v": "v"} if carried else {}
    methods = _pair((TOKENS, *pasts), (TOKENS[:, :1], *pasts), sizes, carry=carry)
    if start:
        tokens = {"tokens": {1: SEQ}}
        methods.append(Method("start", args=(TOKENS,), dynamic=tokens, carry=carry))
    return methods


class FixedLength(Linear):
    """Model with a cache whose length is read from an attribute, and so is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.max_len = SLOTS

    def prefill(self, tokens: Tensor) -> Tensor:
        free = self.k.view(1, 1, self.max_len, WIDTH)
        return super().prefill(tokens) + free[0, 0, 0, 0]


class RowStore(Buffers, k=torch.zeros(1, 1, 16, 128), position=ZERO):
    """Model with a cache of wide rows; its method returns the cache's first row."""

    def write(self, rows: Tensor) -> Tensor:
        start = self.position.clone()
        self.k.copy_(torch.ops.kvc.cache_update(self.k, rows, start))
        self.position.add_(rows.shape[2])
        return self.k[0, 0, :1] + 0.0


class Rows(Linear):
    """Model with a cache in which each row of a batch has a position of its own."""

    def prefill(self, tokens: Tensor) -> Tensor:
        start, (batch, seq) = self.position.clone(), tokens.shape
        x = self.embed(tokens, start[:, None] + torch.arange(seq))
        q = self.q(x).view(batch, seq, HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x)[:, None].chunk(2, dim=-1)
        self.write(k, v, start)
        y = torch.ops.kvc.attention(q, self.k, self.v, start + seq)
        return self.out(y.transpose(1, 2).reshape(batch, seq, DIM))


BATCH = Dim("batch", 1, 4)


def row_methods() -> list[Method]:
    """Return the methods of `Rows`."""
    tokens = TOKENS.repeat(3, 1)
    return [
        Method("prefill", args=(tokens,), dynamic={"tokens": {0: BATCH, 1: SEQ}}),
        Method("decode", args=(tokens[:, :1],), dynamic={"token": {0: BATCH}}),
    ]
