"""Cache updates and attention over caches, as steps of a function.

In: names of tensors, and the arguments of `kvc::cache_update` and `kvc::attention`.
Out: the names of the result tensors. The steps compute, from start positions and
lengths that the host passes, the position whose row each cache slot holds, and which
queries see that row. All layers share these steps. Slots that have not been written
are read as zeros.
"""

from collections.abc import Sequence

from kvc.runtime.delegates.coreai.emitting import BOOL, FLOAT, HALF, INT, LEAST, Emitter
from kvc.runtime.delegates.coreai.function import Shape
from kvc.schema.frozen import frozen

# Bounds of the numbers that a mask adds; visible scores stay far above hidden ones.
_LARGEST_BIAS = {FLOAT: 1e38, HALF: 30000.0}


@frozen
class Ring:
    """How a cache uses its slots.

    Attributes:
        circular: whether slots are reused; see `kvc.schema.rings`.
        slots: the number of slots.
        keep: the number of first positions whose rows are never overwritten.
    """

    circular: bool
    slots: int
    keep: int


def write(
    emitter: Emitter,
    cache: str,
    update: str,
    start: str | None,
    lengths: str | None,
    ring: Ring,
) -> str:
    """Write new rows to a cache, and return the name of the cache's new content.

    Args:
        emitter: collects the steps.
        cache: name of the old content, [batch, heads, slots, width].
        update: name of the new rows, [batch, heads, rows, width].
        start: the first position of each batch row, int32 [batch]; None for 0.
        lengths: int32 [batch], the number of rows to write; None to write all rows.
        ring: how the cache uses its slots.
    """
    update = emitter.cast(update, emitter.dtype(cache))
    batch, heads, rows, width = emitter.shape(update)
    if batch == 1 and lengths is None and not ring.circular:
        at = start or emitter.number(0, INT)
        shape = emitter.shape(cache)
        inputs = (cache, update, at)
        return emitter.step("write", inputs, emitter.dtype(cache), shape, axis=2)
    source = _sources(emitter, start, ring)  # of each slot, a row of the update
    most = emitter.number(rows, INT) if lengths is None else _column(emitter, lengths)
    # Tells of each element whether it is at least 0 and less than `most`.
    low = emitter.with_number("greater", source, -1)
    within = emitter.binary("and", low, emitter.binary("greater", most, source))
    if rows > 1:
        source = emitter.with_number("maximum", source, 0)
        source = emitter.with_number("minimum", source, rows - 1)
        wide = (batch, heads, ring.slots, width)
        at = emitter.broadcast(_over(emitter, source, (-1, 1, ring.slots, 1)), wide)
        update = emitter.step(
            "along", (update, at), emitter.dtype(update), wide, axis=2
        )
    return emitter.where(_over(emitter, within, (-1, 1, ring.slots, 1)), update, cache)


def _column(emitter: Emitter, x: str) -> str:
    """Reshape a tensor [batch] to [batch, 1]."""
    return emitter.reshape(x, (*emitter.shape(x), 1))


def _over(emitter: Emitter, x: str, shape: Shape) -> str:
    """Reshape `x` [batch, slots] to `shape`, which has more axes, of size 1.

    A size of -1 in `shape` stands for the batch size of `x`.
    """
    batch = emitter.shape(x)[0]
    return emitter.reshape(x, tuple(batch if n == -1 else n for n in shape))


def _sources(emitter: Emitter, start: str | None, ring: Ring) -> str:
    """Return the index of the update's row for each slot, int32 [batch or 1, slots]."""
    slots = emitter.places(ring.slots)
    first = emitter.number(0, INT) if start is None else start
    first = _column(emitter, first)
    plain = emitter.binary("sub", slots, first)
    if not ring.circular:
        return plain
    base = emitter.with_number("maximum", first, ring.keep) if ring.keep else first
    steps = _modulo(emitter, emitter.binary("sub", slots, base), ring)
    turned = emitter.binary("add", steps, emitter.binary("sub", base, first))
    return _kept_or(emitter, plain, turned, ring)


def _kept_or(emitter: Emitter, kept: str, other: str, ring: Ring) -> str:
    """Return `kept` for slots that are never overwritten, `other` for other slots."""
    if not ring.keep:
        return other
    slots = emitter.places(ring.slots)
    is_kept = emitter.binary("greater", emitter.number(ring.keep, INT), slots)
    return emitter.where(is_kept, kept, other)


def _modulo(emitter: Emitter, x: str, ring: Ring) -> str:
    """Return `x` modulo the number of reused slots; the result is not negative."""
    size = ring.slots - ring.keep
    once = emitter.with_number("modulo", x, size)
    return emitter.with_number("modulo", emitter.with_number("add", once, size), size)


def _held(emitter: Emitter, total: str, ring: Ring) -> str:
    """Return the position whose row is in each slot, int32 [batch, slots].

    Empty slots get -1.

    Args:
        emitter: collects the steps.
        total: int32 [batch], the number of positions written so far.
        ring: how the cache uses its slots.
    """
    slots, end = emitter.places(ring.slots), _column(emitter, total)
    none = emitter.number(-1, INT)
    plain = emitter.where(emitter.binary("greater", end, slots), slots, none)
    if not ring.circular:
        return plain
    last = emitter.with_number("sub", end, 1)
    back = _modulo(emitter, emitter.binary("sub", last, slots), ring)
    position = emitter.binary("sub", last, back)
    there = emitter.with_number("greater", position, ring.keep - 1)
    return _kept_or(emitter, plain, emitter.where(there, position, none), ring)


@frozen
class Seen:
    """The arguments of `kvc::attention` that decide which slots each query sees.

    Tensors are given by their names.

    Attributes:
        total: int32 [batch], the number of positions written to the cache so far.
        lengths: int32 [batch], the number of real queries; None if all are real.
        causal, left, right: as in `kvc::attention`.
        mask: bool or float [batch or 1, heads or 1, queries, positions], or None.
        slopes: float32 [heads], or None.
        ring: how the cache uses its slots.
    """

    total: str
    lengths: str | None
    causal: bool
    left: int | None
    right: int | None
    mask: str | None
    slopes: str | None
    ring: Ring


def attend(
    emitter: Emitter,
    q: str,
    content: tuple[str, str],
    seen: Seen,
    scale: float,
    softcap: float | None,
) -> str:
    """Attend to a cache; see `kvc::attention`."""
    at = _held(emitter, seen.total, seen.ring)
    is_there = emitter.with_number("greater", at, -1)
    keys, values = (emitter.cast(each, emitter.dtype(q)) for each in content)
    slots = seen.ring.slots
    values = emitter.where(
        _over(emitter, is_there, (-1, 1, slots, 1)),
        values,
        emitter.number(0, emitter.dtype(values)),
    )
    scores = scored(emitter, q, keys, scale, softcap)
    queries = emitter.shape(q)[2]
    count = emitter.number(queries, INT) if seen.lengths is None else seen.lengths
    first = _column(emitter, emitter.binary("sub", seen.total, count))
    own = emitter.binary(
        "add", first, emitter.places(queries)
    )  # position of each query
    ahead = emitter.binary(
        "sub",
        _over(emitter, at, (-1, 1, 1, slots)),
        emitter.reshape(own, (emitter.shape(own)[0], 1, queries, 1)),
    )
    allowed = _allowed(emitter, ahead, at, seen, count)
    bias = None
    if seen.slopes is not None:
        slopes = emitter.reshape(seen.slopes, (1, emitter.shape(seen.slopes)[0], 1, 1))
        bias = emitter.binary("mul", slopes, emitter.cast(ahead, FLOAT))
    if seen.mask is not None:
        allowed, added = masked(emitter, allowed, seen.mask, slots)
        if added is not None:
            bias = added if bias is None else emitter.binary("add", bias, added)
    return mixed(emitter, scores, values, allowed, bias)


def _allowed(emitter: Emitter, ahead: str, at: str, seen: Seen, count: str) -> str:
    """Return which slots each query sees without `seen.mask`.

    Args:
        emitter: collects the steps.
        ahead: each slot's position minus each query's position.
        at: the position in each slot, -1 for empty slots.
        seen: the arguments of the attention.
        count: the number of real queries.

    Returns:
        The name of a tensor, bool [batch, 1, queries, slots].
    """
    slots = seen.ring.slots
    place = _over(emitter, at, (-1, 1, 1, slots))
    allowed = emitter.with_number("greater", place, -1)
    limit = 0 if seen.causal else seen.right
    if limit is not None:
        near = emitter.binary("greater", emitter.number(limit + 1, INT), ahead)
        allowed = emitter.binary("and", allowed, near)
    if seen.left is not None:
        near = emitter.with_number("greater", ahead, -seen.left - 1)
        if seen.ring.keep:
            kept = emitter.binary("greater", emitter.number(seen.ring.keep, INT), place)
            near = emitter.binary("or", near, kept)
        allowed = emitter.binary("and", allowed, near)
    if seen.lengths is not None:
        queries = emitter.shape(ahead)[2]
        counts = emitter.binary(
            "greater", _column(emitter, count), emitter.places(queries)
        )
        counts = emitter.reshape(counts, (emitter.shape(counts)[0], 1, queries, 1))
        allowed = emitter.binary("and", allowed, counts)
    return allowed


def masked(
    emitter: Emitter, allowed: str | None, mask: str, columns: int
) -> tuple[str, str | None]:
    """Apply a mask to the columns that are visible without the mask.

    Args:
        emitter: collects the steps.
        allowed: bool, the columns that each query sees without the mask; None if each
            query sees all columns.
        mask: bool or float [batch or 1, heads or 1, queries, positions].
        columns: the number of columns of scores; columns that the mask lacks are
            hidden.

    Returns:
        The name of a bool tensor: which columns each query sees. Then the name of the
        numbers that a float mask adds to scores, or None for a bool mask.
    """
    is_bool = emitter.dtype(mask) == BOOL
    shape = emitter.shape(mask)
    mask = emitter.part(mask, 3, range(min(columns, shape[3])))
    added = None
    if not is_bool:
        # Compares with -inf indirectly, since JSON has no infinite constants.
        finite = emitter.with_number("maximum", mask, LEAST[emitter.dtype(mask)])
        shown, added = emitter.binary("equal", finite, mask), finite
    else:
        shown = mask
    missing = columns - shape[3]
    if missing > 0:
        rest = (*shape[:3], missing)
        hidden = emitter.broadcast(emitter.number(False, BOOL), rest)
        shown = emitter.concat((shown, hidden), 3)
        if added is not None:
            nothing = emitter.broadcast(emitter.number(0, FLOAT), rest)
            added = emitter.concat((added, nothing), 3)
    left = shown if allowed is None else emitter.binary("and", allowed, shown)
    return left, added


def scored(
    emitter: Emitter, q: str, keys: str, scale: float, softcap: float | None
) -> str:
    """Return attention scores [batch, heads, queries, columns].

    Each group of consecutive query heads uses the same head of `keys`.
    """
    batch, heads, queries, width = emitter.shape(q)
    groups, columns = emitter.shape(keys)[1:3]
    x = emitter.with_number("mul", q, scale)
    x = emitter.reshape(x, (batch, groups, heads // groups * queries, width))
    x = emitter.product(x, emitter.turned(keys))
    x = emitter.reshape(x, (batch, heads, queries, columns))
    if softcap is None:
        return x
    capped = emitter.unary("tanh", emitter.with_number("divide", x, softcap))
    return emitter.with_number("mul", capped, softcap)


def mixed(
    emitter: Emitter,
    scores: str,
    values: str,
    allowed: str | None,
    bias: str | None,
) -> str:
    """Mix values by the softmax of scores; a query without visible keys gets zeros.

    Args:
        emitter: collects the steps.
        scores: [batch, heads, queries, columns].
        values: [batch, groups, columns, width].
        allowed: bool, which columns each query sees; None if all columns are visible.
        bias: numbers to add to `scores`, or None.
    """
    dtype = emitter.dtype(scores)
    if bias is not None:
        bias = emitter.with_number("maximum", bias, -_LARGEST_BIAS[dtype])
        bias = emitter.with_number("minimum", bias, _LARGEST_BIAS[dtype])
        scores = emitter.binary("add", scores, bias)
    if allowed is not None:
        scores = emitter.where(allowed, scores, emitter.number(LEAST[dtype], dtype))
    weights = emitter.unary("softmax", scores, axis=3)
    if allowed is not None:
        weights = emitter.where(allowed, weights, emitter.number(0, dtype))
    batch, heads, queries, columns = emitter.shape(weights)
    groups, _, width = emitter.shape(values)[1:]
    rows = heads // groups * queries
    x = emitter.reshape(weights, (batch, groups, rows, columns))
    x = emitter.product(x, values)
    return emitter.reshape(x, (batch, heads, queries, width))


def attend_to_tokens(
    emitter: Emitter,
    operands: Sequence[str],
    mask: str | None,
    scale: float,
    *,
    causal: bool,
) -> str:
    """Attend to the given keys and values, without a cache.

    This is `aten::scaled_dot_product_attention`.

    Args:
        emitter: collects the steps.
        operands: names of queries, keys and values.
        mask: name of a mask that broadcasts to [batch, heads, queries, columns], or
            None.
        scale: the factor on scores.
        causal: whether query `i` sees only the columns 0 to `i`.
    """
    q, keys, values = emitter.alike(*operands)
    queries, columns = emitter.shape(q)[2], emitter.shape(keys)[2]
    allowed, bias = None, None
    if causal:
        own = emitter.reshape(emitter.places(queries), (1, 1, queries, 1))
        own = emitter.with_number("add", own, 1)
        allowed = emitter.binary("greater", own, emitter.places(columns))
    if mask is not None:
        shape = emitter.shape(mask)
        wide = (*(1,) * (4 - len(shape)), *shape)
        mask = emitter.reshape(mask, wide)
        mask = emitter.broadcast(mask, (*wide[:2], queries, columns))
        allowed, bias = masked(emitter, allowed, mask, columns)
    return mixed(emitter, scored(emitter, q, keys, scale, None), values, allowed, bias)
