"""Attributes in which a module may store a tensor, and views that it may store.

Each entry of `PLACES` is a function of a module, a number and the tensor. It stores the
tensor in the module, and returns a function that gets the tensor, a function that sets
it, and the name of the attribute.
"""

from dataclasses import dataclass

import torch


class Box:
    """A plain object with attributes."""


class Slotted:
    """An object with slots instead of a `__dict__`."""

    __slots__ = ("held", "more")


@dataclass
class Record:
    """A dataclass with a field that is a list."""

    held: object
    more: list


def view_of(tensor, chance):
    kind = chance.randrange(8)
    if kind == 0 and tensor.dim():
        axis = chance.randrange(tensor.dim())
        place = chance.randrange(tensor.shape[axis])
        return tensor.select(axis, place), f".select({axis}, {place})"
    if kind == 1 and tensor.dim():
        axis = chance.randrange(tensor.dim())
        start = chance.randrange(tensor.shape[axis])
        length = chance.randint(1, tensor.shape[axis] - start)
        return tensor.narrow(axis, start, length), f".narrow({axis}, {start}, {length})"
    if kind == 2 and tensor.dim():
        return tensor[::2], "[::2]"
    if kind == 3 and tensor.dim() > 1:
        return tensor.transpose(0, -1), ".transpose(0, -1)"
    if kind == 4 and tensor.is_contiguous():
        return tensor.view(-1), ".view(-1)"
    if kind == 5:
        return tensor.unsqueeze(0), ".unsqueeze(0)"
    if kind == 6 and tensor.dim():
        return tensor.expand(2, *tensor.shape), ".expand(2, ...)"
    return tensor.detach(), ".detach()"


def _at_name(owner, name, tensor, text):
    setattr(owner, name, tensor)
    return (lambda: getattr(owner, name)), (lambda t: setattr(owner, name, t)), text


def _at_key(owner, key, tensor, text):
    owner[key] = tensor
    return (lambda: owner[key]), (lambda t: owner.__setitem__(key, t)), text


def _of_box(model, i, tensor):
    box = (model.box, model.box.deeper)[i % 2]
    return _at_name(box, f"a{i}", tensor, f"box.a{i}")


def _of_list(model, i, tensor):
    at = len(model.row)
    model.row.append(None)
    return _at_key(model.row, at, tensor, f"row[{at}]")


def _of_slots(model, i, tensor):
    held = Slotted()
    held.held = (tensor,)
    setattr(model, f"slotted{i}", held)
    put = lambda t: setattr(held, "more", t)  # noqa: E731
    return (lambda: held.held[0]), put, f"slotted{i}.held[0]"


def _of_record(model, i, tensor):
    record = model.table[f"record{i}"] = Record(None, [{}])
    return _at_key(record.more[0], "deep", tensor, f"record{i}.more[0]")


def _of_closure(model, i, tensor):
    get = lambda: tensor  # noqa: E731
    setattr(model, f"get{i}", get)
    return get, (lambda t: None), f"get{i}()"


def _second_buffer(model, i, tensor):
    model.inner.register_buffer(f"again{i}", tensor)
    return _at_name(model.inner, f"again{i}", tensor, f"inner.again{i}")


def _of_numpy(model, i, tensor):
    shared = torch.from_numpy(tensor.numpy())
    return _at_name(model, f"a{i}", shared, f"from_numpy a{i}")


PLACES = (
    lambda model, i, t: _at_name(model, f"a{i}", t, f"self.a{i}"),
    *(_of_box, _of_list),
    lambda model, i, t: _at_key(model.table, i, t, f"table[{i}]"),
    *(_of_slots, _of_record, _of_closure),
    lambda model, i, t: _at_name(model.inner, f"a{i}", t, f"inner.a{i}"),
    *(_second_buffer, _of_numpy),
)
