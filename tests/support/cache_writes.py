"""Ways to write a cache [2, 8, 3], and the operators that each way is traced as.

`m.k` is the cache; `m.p` int64 [] and `m.q` int64 [1] are counters that start at zero.
`x` is float32 [2, 2, 3], and `i` has the indices of two slots. Operators are named
without their namespace.
"""

from collections.abc import Callable

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor

Write = Callable[["Cache", Tensor, Tensor], None]


class Cache(
    Buffers, k=torch.arange(48.0).reshape(2, 8, 3) / 7, p=torch.tensor(0), q=ZERO
):
    """Model with a cache and two counters, which a given function writes."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    def step(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.write(self, x, i)
        return self.k * 1.0, self.p + 0, self.q + 0


def _within(place, count):
    """Return a slot as an int, after a check that `count` of 8 slots fit from it on."""
    start = place.item()
    torch._check(start >= 0)
    torch._check(start + count <= 8)
    return start


WRITES: dict[str, tuple[Write, tuple[str, ...]]] = {}
# Ways in statements of m, x and i, by the ops that they arrive as, if by one or more.
_STATEMENTS: dict[str, dict[str, str | tuple[str, ...]]] = {
    "index_copy": {
        "copy_one_half_to_the_other": (
            "first, second = m.k.chunk(2, 1)",
            "second.copy_(first)",
        ),
        "index_copy": "m.k.index_copy_(1, i, x)",
        "assign_one_place": "m.k[:, 1] = x[:, 0]",
        "assign_one_place_from_the_back": "m.k[:, -2] = x[:, 0]",
        "assign_a_number_at_one_place": "m.k[:, 1] = 2.0",
        "assign_in_the_last_axis": "m.k[..., 1] = x[:, :1, 0]",
        "assign_a_slice": "m.k[:, 2:4] = x",
        "assign_a_slice_with_a_step": "m.k[:, ::4] = x",
        "assign_the_end": "m.k[:, -2:] = x",
        "assign_integers_to_a_slice": "m.k[:, 2:4] = i.view(2, 1)",
        "copy_into_a_narrow_view": "m.k.narrow(1, 2, 2).copy_(x)",
        "add_to_a_slice": "m.k[:, 2:4] += x",
        "scale_a_slice": "m.k[:, 2:4].mul_(2)",
        "zero_a_slice": "m.k[:, 1:3].zero_()",
        "write_a_transposed_slice": (
            "m.k.transpose(1, 2)[:, :, 3:5] = x.transpose(1, 2)"
        ),
    },
    "index_put": {
        "write_some_rows_at_the_position": (
            "p = _within(m.p, 2)",
            "m.k[:1, p : p + 2] = x[:1]",
            "m.p += 2",
        ),
        "write_one_part_of_a_cache_of_both": (
            "p = _within(m.p, 2)",
            "m.k.split([1, 2], 2)[1][:, p : p + 2] = x[:, :, 1:]",
            "m.p += 2",
        ),
        "assign_at_an_index": "m.k[:, i] = x",
        "assign_at_places_from_the_back": "m.k[:, i - 8] = x",
        "assign_a_number_at_an_index": "m.k[:, i] = x.sum()",
        "assign_at_two_indices": "m.k[torch.arange(2), i] = x[:, 0]",
        "assign_at_the_last_axes": "m.k[:, i, i // 3] = x[:, :, 0]",
        "assign_at_a_list": "m.k[:, [5, -1]] = x",
        "put_and_accumulate": "torch.ops.aten.index_put_(m.k, [None, i // 3], x, True)",
        "add_at_an_index": "m.k[:, i] += x",
        "assign_slices_of_all_axes": "m.k[:1, 2:4, 1:] = x[:1, :, 1:]",
        "index_fill": "m.k.index_fill_(1, i - 8, 3.0)",
        "index_fill_with_a_tensor": "m.k.index_fill_(1, i, x.sum())",
        "write_a_slice_of_a_row": "m.k[0][3:5] = x[0]",
        "write_a_column_of_a_row": "m.k[0][:, 1] = x[0, 0, 0]",
        "write_a_slice_of_a_split_axis": "m.k.view(2, 2, 4, 3)[:, 1, 2:4] = x",
        "write_rows_of_merged_axes": "m.k.view(16, 3)[i] = x[0]",
        "write_transposed_at_an_index": (
            "m.k.transpose(1, 2)[:, :, i] = x.transpose(1, 2)"
        ),
        "write_permuted_at_one_place": "m.k.permute(1, 0, 2)[i[0]] = x[:, 0]",
        "assign_one_slot_at_an_unknown_place": "m.k[:, i[0] - 6] = x[:, 0]",
    },
    "": {
        "copy_a_where": (
            "chosen = torch.arange(8)[None, :, None] == i[0]",
            "m.k.copy_(torch.where(chosen, x[:, :1], m.k))",
        ),
        "compute_with_an_item": (
            "p = m.p.item()",
            "before = torch.arange(8)[None, :, None] < p",
            "m.k.copy_(torch.where(before, m.k * (2 * p - 1), p // 2))",
            "m.p += 3",
        ),
        "compute_with_a_float_item": (
            "f = m.k[0, 0, 1].item()",
            "m.k.copy_(m.k * (f * 0.5 + 1.25) - f)",
        ),
        "read_at_an_item": (
            "p = _within(i[0], 2)",
            "m.k.copy_(m.k[:, p : p + 1] + m.k[:, p][:, None])",
        ),
        "assign_everything": "m.k[:, :] = x[:, :1]",
        "masked_fill": "m.k.masked_fill_(m.k > 3, 0.5)",
        "assign_under_a_mask": "m.k[:, torch.arange(8) % 2 == 0] = 0.0",
        "fill": "m.k.fill_(x.sum())",
        "copy_with_a_cast": "m.k.copy_(i.sum())",
        "copy_with_a_broadcast": "m.k.copy_(x[:, :1])",
        "roll": "m.k.copy_(torch.roll(m.k, 1, 1))",
        "read_one_slot_from_the_back": "m.k.copy_(m.k + m.k[:, i[0] - 6][:, None])",
    },
    "index_copy index_copy": {
        "shift_and_append": ("m.k[:, :-1] = m.k[:, 1:].clone()", "m.k[:, -1] = x[:, 0]")
    },
    "index_copy index_copy index_copy": {
        "write_three_times": (
            "m.k[:, 0:2] = x",
            "m.k[:, 2:4] = x * 2",
            "m.k.index_copy_(1, i, x * 3)",
        )
    },
    "index_put index_put": {
        "write_each_row": ("for row in m.k.unbind(0):", "    row[0] = 1.0")
    },
    "scatter.src": {"scatter": "m.k.scatter_(1, i.view(1, 2, 1).expand(2, 2, 3), x)"},
    "scatter.value": {
        "scatter_a_number": "m.k.scatter_(1, i.view(1, 2, 1).expand(2, 2, 3), 2.5)"
    },
    "scatter_add": {
        "scatter_add": "m.k.scatter_add_(1, i.view(1, 2, 1).expand(2, 2, 3), x)",
        "scatter_by_adding": (
            'm.k.scatter_reduce_(1, i.view(1, 2, 1).expand(2, 2, 3), x, "sum")'
        ),
    },
    "index_add": {"index_add": "m.k.index_add_(1, i, x, alpha=2)"},
    "cache_update": {
        "index_copy_at_the_position": (
            "m.k.index_copy_(1, m.p + torch.arange(2), x)",
            "m.p += 2",
        ),
        "assign_at_the_position": ("m.k[:, torch.arange(2) + m.p] = x", "m.p.add_(2)"),
        "assign_one_slot_at_the_position": (
            "m.k[:, m.p] = x[:, 0]",
            "m.p.copy_(m.p + 1)",
        ),
        "assign_one_slot_at_a_list_of_one": ("m.k[:, m.q] = x[:, :1]", "m.q += 1"),
        "assign_a_slice_at_the_position": ("m.k[:, m.p : m.p + 2] = x", "m.p += 2"),
        "assign_a_slice_at_an_item": (
            "p = _within(m.p, 2)",
            "m.k[:, p : p + 2] = x",
            "m.p.fill_(p + 2)",
        ),
        "narrow_at_an_item": (
            "m.k.narrow(1, m.q.item(), 2).copy_(x)",
            "m.q.copy_(m.q + 2)",
        ),
        "assign_one_slot_at_an_item": (
            "p = _within(m.p, 1)",
            "m.k[:, p] = x[:, 0]",
            "m.p += 1",
        ),
        "assign_at_a_range_from_an_item": (
            "p = m.p.item()",
            "m.k[:, torch.arange(p, p + 2)] = x",
            "m.p += 2",
        ),
        "add_to_a_slice_at_an_item": (
            "p = _within(m.p, 2)",
            "m.k[:, p : p + 2] += x * p",
            "m.p += 2",
        ),
        "write_a_ring_by_hand": (
            "p = _within(m.p % 6, 2)",
            "m.k[:, p : p + 2] = x",
            "m.p += 2",
        ),
        "index_copy_at_an_unknown_place": "m.k.index_copy_(1, i[1:], x[:, :1])",
    },
}


def _function(name: str, *statements: str, given: str = "m, x, i") -> Write:
    found: dict[str, Write] = {}
    text = "\n    ".join([f"def {name}({given}):", *statements])
    exec(text, globals(), found)
    return found[name]


for _op, _ways in _STATEMENTS.items():
    for _name, _statement in _ways.items():
        _each = _statement if isinstance(_statement, tuple) else (_statement,)
        WRITES[_name] = (_function(_name, *_each), tuple(_op.split()))


class Places(Buffers, k=torch.zeros(2, 2, 8, 3), position=torch.tensor(0)):
    """Model with a cache [2, 2, 8, 3], written at a given slot or its own position."""

    def by_slice(self, x: Tensor, p: Tensor) -> Tensor:
        start, count = _within(p, x.shape[2]), x.shape[2]
        self.k[:, :, start : start + count] = x
        return self.k * 1.0

    def at_position(self, x: Tensor, p: Tensor) -> Tensor:
        start, count = _within(self.position, x.shape[2]), x.shape[2]
        self.k[:, :, start : start + count] += x
        self.position += count
        return self.k * 1.0


# Other ways, each of one statement; n is how many rows x has.
for _name, _statement in {
    "at_the_front": "self.k[:, :, :n] = x + p",
    "at_the_end": "self.k[:, :, 8 - n :] += x",
    "by_narrow": "self.k.narrow(2, _within(p, n), n).copy_(x)",
    "by_index_copy": "self.k.index_copy_(2, torch.arange(n) + p, x)",
    "by_index": "self.k[:, :, p + torch.arange(n)] = x",
    "by_one_place": "self.k[:, :, p] = x.sum(2)",
    "transposed": (
        "self.k.transpose(1, 2).index_copy_(1, p + torch.arange(n), x.transpose(1, 2))"
    ),
    "of_one_row": "self.k[1].index_copy_(1, p + torch.arange(n), x[0])",
}.items():
    _lines = "n = x.shape[2]", _statement, "return self.k * 1.0"
    setattr(Places, _name, _function(_name, *_lines, given="self, x, p"))
