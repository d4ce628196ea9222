"""Caches: where rows are written, which position each slot has, what a query sees.

In: names of tensors, and the arguments of `kvc::cache_update` and `kvc::attention`.
Out: the names of results. From indices that the caller passes, the operations compute
the position of the row in each slot of a cache, and which queries see the row. All
layers share these operations.
"""

from kvc.runtime.delegates.lowering.builder import INT, Builder
from kvc.runtime.delegates.lowering.context import Made, OpContext
from kvc.runtime.delegates.lowering.function import Shape
from kvc.schema.backends.primitives import Primitive
from kvc.schema.frozen import frozen

_P = Primitive


@frozen
class Ring:
    """The use of a cache's slots.

    Attributes:
        circular: whether slots are reused; see `kvc.schema.rings`.
        slots: the number of slots.
        keep: the number of first positions whose rows are never overwritten.
    """

    circular: bool
    slots: int
    keep: int


def update_cache(
    line: OpContext,
    cache: object,
    update: object,
    start: object,
    axis: int,
    mode: str,
    lengths: object,
    keep: int,
) -> Made:
    """Return the name of a cache's new content, [batch, heads, slots, width]."""
    held, rows = line.get(cache), line.get(update)
    ring = Ring(mode == "circular", line.shape[2], keep)
    return write(
        line.build, held, rows, line.optional(start), line.optional(lengths), ring
    )


def write(
    build: Builder,
    cache: str,
    update: str,
    start: str | None,
    lengths: str | None,
    ring: Ring,
) -> str:
    """Write new rows to a cache, and return the name of the cache's new content.

    Args:
        build: collects the operations.
        cache: [batch, heads, slots, width].
        update: [batch, heads, rows, width].
        start: the first position of each batch row, an integer [batch]; None for 0.
        lengths: an integer [batch], the number of rows to write; None to write all.
        ring: the use of the cache's slots.
    """
    update = build.cast(update, build.dtype(cache))
    batch, heads, rows, width = build.shape(update)
    if not rows:
        return cache
    slice_alone = batch == 1 and lengths is None and not ring.circular
    if slice_alone and _P.WRITE in build.primitives:
        at = start or build.number(0, INT)
        shape = build.shape(cache)
        given = (cache, update, at)
        return build.operation(_P.WRITE, given, build.dtype(cache), shape, axis=2)
    source = _sources(build, start, ring)  # the row for each slot
    most = build.number(rows, INT) if lengths is None else column(build, lengths)
    # Whether each slot gets a row: whether `source` is at least 0 and below `most`.
    low = build.with_number(_P.GREATER, source, -1)
    within = build.binary(_P.AND, low, build.binary(_P.GREATER, most, source))
    if rows > 1:
        source = build.with_number(_P.MAXIMUM, source, 0)
        source = build.with_number(_P.MINIMUM, source, rows - 1)
        wide = (batch, heads, ring.slots, width)
        at = build.broadcast(over_slots(build, source, (-1, 1, ring.slots, 1)), wide)
        update = build.along(update, at, 2)
    return build.where(over_slots(build, within, (-1, 1, ring.slots, 1)), update, cache)


def column(build: Builder, x: str) -> str:
    """Reshape a tensor [batch] to [batch, 1]."""
    return build.reshape(x, (*build.shape(x), 1))


def over_slots(build: Builder, x: str, shape: Shape) -> str:
    """Reshape [batch, slots] to `shape`, with axes of size 1; -1 stands for batch."""
    batch = build.shape(x)[0]
    return build.reshape(x, tuple(batch if n == -1 else n for n in shape))


def _sources(build: Builder, start: str | None, ring: Ring) -> str:
    """Return the row of an update for each slot, an integer [batch or 1, slots].

    A slot that gets no row has a number that is no row of the update.
    """
    slots = build.places(ring.slots)
    first = build.number(0, INT) if start is None else start
    first = column(build, first)
    plain = build.binary(_P.SUB, slots, first)
    if not ring.circular:
        return plain
    base = build.with_number(_P.MAXIMUM, first, ring.keep) if ring.keep else first
    steps = _modulo(build, build.binary(_P.SUB, slots, base), ring)
    turned = build.binary(_P.ADD, steps, build.binary(_P.SUB, base, first))
    return _kept_or(build, plain, turned, ring)


def _kept_or(build: Builder, kept: str, other: str, ring: Ring) -> str:
    """Return `kept` for slots that are never overwritten, `other` for other slots."""
    if not ring.keep:
        return other
    slots = build.places(ring.slots)
    is_kept = build.binary(_P.GREATER, build.number(ring.keep, INT), slots)
    return build.where(is_kept, kept, other)


def _modulo(build: Builder, x: str, ring: Ring) -> str:
    """Return `x` modulo the number of reused slots; the result is not negative."""
    size = ring.slots - ring.keep
    once = build.with_number(_P.MODULO, x, size)
    return build.with_number(_P.MODULO, build.with_number(_P.ADD, once, size), size)


def positions(build: Builder, total: str, ring: Ring) -> str:
    """Return the position in each slot, an integer [batch, slots]; -1 if empty.

    Args:
        build: collects the operations.
        total: an integer [batch], the number of positions in the cache.
        ring: the use of the cache's slots.
    """
    slots, end = build.places(ring.slots), column(build, total)
    none = build.number(-1, INT)
    plain = build.where(build.binary(_P.GREATER, end, slots), slots, none)
    if not ring.circular:
        return plain
    last = build.with_number(_P.SUB, end, 1)
    back = _modulo(build, build.binary(_P.SUB, last, slots), ring)
    position = build.binary(_P.SUB, last, back)
    there = build.with_number(_P.GREATER, position, ring.keep - 1)
    return _kept_or(build, plain, build.where(there, position, none), ring)


@frozen
class Visibility:
    """Which positions of a cache a query sees, without a mask.

    Attributes:
        causal, left, right: as in `kvc::attention`.
        keep: the number of first positions that `left` does not hide.
        lengths: an integer [batch], the number of real queries; None if all are real.
    """

    causal: bool
    left: int | None
    right: int | None
    keep: int
    lengths: str | None


def visible(build: Builder, ahead: str, at: str, limits: Visibility) -> str:
    """Return which queries see which slots, bool [batch, 1, queries, slots].

    Args:
        build: collects the operations.
        ahead: each slot's position minus each query's position, an integer
            [batch, 1, queries, slots].
        at: the position in each slot, an integer [batch, slots]; -1 for empty slots.
        limits: the limits of what a query sees.
    """
    queries, slots = build.shape(ahead)[2:]
    place = over_slots(build, at, (-1, 1, 1, slots))
    allowed = build.with_number(_P.GREATER, place, -1)
    limit = 0 if limits.causal else limits.right
    if limit is not None:
        near = build.binary(_P.GREATER, build.number(limit + 1, INT), ahead)
        allowed = build.binary(_P.AND, allowed, near)
    if limits.left is not None:
        near = build.with_number(_P.GREATER, ahead, -limits.left - 1)
        if limits.keep:
            kept = build.binary(_P.GREATER, build.number(limits.keep, INT), place)
            near = build.binary(_P.OR, near, kept)
        allowed = build.binary(_P.AND, allowed, near)
    if limits.lengths is not None:
        real = build.binary(
            _P.GREATER, column(build, limits.lengths), build.places(queries)
        )
        real = build.reshape(real, (build.shape(real)[0], 1, queries, 1))
        allowed = build.binary(_P.AND, allowed, real)
    return allowed
