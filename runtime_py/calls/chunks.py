"""Split a prompt into calls.

In: the token counts that each method of a program takes, the number of tokens of the
prompt. Out: chunks in running order: as few calls as possible, with token counts as
equal as possible, since a second call with the same token count needs no binding.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product

from kvc.schema.frozen import frozen
from kvc.schema.model import Method
from kvc.schema.types import Affine, Dim, Symbol, bounds, evaluate, symbols_of

_MOST_COMBINED = 6  # all 64 subsets of this number of methods are tried


@frozen
class ChunkSizes:
    """The token counts that a method takes: `least`, `least + step`, ... `most`.

    `least` is 1 or more. If `among` is not empty, the method takes only the counts in
    `among`.
    """

    method: str
    least: int
    most: int
    step: int = 1
    among: tuple[int, ...] = ()

    def greatest(self, count: int) -> int:
        """Return the greatest allowed size up to `count`, where `count >= least`."""
        if self.among:
            return max(size for size in self.among if size <= count)
        top = min(count, self.most)
        return top - (top - self.least) % self.step

    def smallest(self, count: int) -> int:
        """Return the smallest allowed size from `count` on, where `count <= most`."""
        if self.among:
            return min(size for size in self.among if size >= count)
        return max(self.least, count + -(count - self.least) % self.step)


@frozen
class Chunk:
    """The tokens of one call of a method."""

    method: str
    count: int


def chunk_sizes(
    method: Method, symbols: Mapping[str, Symbol], longest: int | None = None
) -> ChunkSizes:
    """Return the token counts that a method takes for its tokens int64 [batch, seq].

    If the sequence dim has buckets, only bucket sizes are allowed.

    Args:
        method: a method with a role, whose first input holds tokens.
        symbols: the program's symbols by name.
        longest: the greatest token count of a call, as `Session.longest_call`; None for
            no limit. A method whose least size exceeds `longest` takes no tokens.
    """
    dim = method.graph.values[method.graph.inputs[0]].type.dims[1]
    among = _buckets(dim, symbols)
    if among:
        fits = tuple(n for n in among if longest is None or n <= longest)
        most = fits[-1] if fits else among[0] - 1
        return ChunkSizes(method.name, among[0], most, among=fits)
    least, most = bounds(dim, symbols)
    parts = dim.parts if isinstance(dim, Affine) else ()
    step = math.gcd(*(c for _, c in parts)) or 1
    if least < 1:
        least += -(-(1 - least) // step) * step
    if longest is not None and longest < most:
        most = longest - (longest - least) % step
    return ChunkSizes(method.name, least, most, step)


def _buckets(dim: Dim, symbols: Mapping[str, Symbol]) -> tuple[int, ...]:
    """Return the bucket sizes of a dim that are at least 1; none without buckets."""
    names = sorted(symbols_of([dim]))
    choices = [symbols[name].sizes for name in names]
    if not all(choices) or not names:
        return ()
    found = {
        evaluate(dim, dict(zip(names, sizes, strict=True)))
        for sizes in product(*choices)
    }
    return tuple(sorted(number for number in found if number >= 1))


def plan_chunks(
    count: int, prefills: Sequence[ChunkSizes], decode: ChunkSizes
) -> list[Chunk]:
    """Return the calls that run a prompt.

    Args:
        count: the number of tokens of the prompt, 1 or more.
        prefills: the sizes of each method of the role "prefill".
        decode: the sizes of the decode method, which takes one token.
    """
    usable = [sizes for sizes in prefills if sizes.least <= min(count, sizes.most)]
    usable.sort(key=lambda sizes: (-sizes.most, -sizes.least))
    plans = [
        _cut(count, [*chosen, decode])
        for chosen in _selections(usable[:_MOST_COMBINED])
    ]
    widths = {sizes.method: sizes.most - sizes.least for sizes in (*usable, decode)}

    def cost(plan: list[Chunk]) -> tuple[int, int, int]:
        # Of plans with equally few calls, methods compiled for fewer sizes are faster.
        return len(plan), len(set(plan)), sum(widths[c.method] for c in set(plan))

    return min(plans, key=cost)


def _selections(usable: Sequence[ChunkSizes]) -> list[tuple[ChunkSizes, ...]]:
    """Return every non-empty subset of `usable`, its largest member first.

    If `usable` is empty, return the empty subset alone.
    """
    numbers = range(1 if usable else 0, len(usable) + 1)
    return [chosen for n in numbers for chosen in combinations(usable, n)]


def _cut(count: int, methods: Sequence[ChunkSizes]) -> list[Chunk]:
    """Cut `count` tokens into chunks; each method in turn takes as many as it can."""
    plan: list[Chunk] = []
    for sizes in methods:
        if not count:
            break
        even = _even(count, sizes)
        if even:
            return plan + even
        while count >= sizes.least:
            size = sizes.greatest(count)
            plan.append(Chunk(sizes.method, size))
            count -= size
    return plan


def _even(count: int, sizes: ChunkSizes) -> list[Chunk]:
    """Cut `count` tokens into nearly equal chunks of one method; none if impossible."""
    if sizes.among:
        return [Chunk(sizes.method, count)] if count in sizes.among else []
    calls = -(-count // sizes.most)
    steps, rest = divmod(count - calls * sizes.least, sizes.step)
    if rest or steps < 0:
        return []
    small, larger = divmod(steps, calls)
    counts = [sizes.least + sizes.step * (small + (i < larger)) for i in range(calls)]
    return [Chunk(sizes.method, n) for n in counts]
