"""Translate a partition, at one set of sizes, to a model of ONNX and a `Plan`.

In: a block that `kvc.schema.backends.qnn` supports, or `qnn_fixed` if there are grids.
Out: nodes of float16 or on integers, and the host's work before and after the device
runs. The device does not change caches: it gets a cache's old content, attends to old
content and new rows side by side, and returns the new rows. Therefore only attention
can read a cache's new content.
"""

from collections.abc import Mapping

import numpy as np

from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.host_runs import Handed
from kvc.runtime.delegates.operands import settled
from kvc.runtime.delegates.qnn.attention_masks import Sight, Update, hiding, same_place
from kvc.runtime.delegates.qnn.emitting import Emitter, NotTaken
from kvc.runtime.delegates.qnn.fixed_emitting import FIXED, FixedEmitter, grid_of
from kvc.runtime.delegates.qnn.model_file import Model
from kvc.runtime.delegates.qnn.operators import EMITTERS
from kvc.runtime.delegates.qnn.plan import (
    Bias,
    Feed,
    Made,
    Past,
    Plan,
    Rows,
    Seeing,
    Stored,
    Whole,
)
from kvc.runtime.delegates.qnn.ranges import reach_of
from kvc.runtime.delegates.qnn.steps import Step
from kvc.schema.backends.grids import Grid
from kvc.schema.backends.qnn import ATTENTION, CACHE_UPDATE
from kvc.schema.backends.qnn_fixed import Grids
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref
from kvc.schema.ops import OPS, Aliasing


def translate(
    graph: Graph, sizes: Mapping[str, int], name: str, grids: Grids | None = None
) -> Plan:
    """Return the plan of a block.

    Args:
        graph: the block's graph, of supported operators.
        sizes: the sizes of the program's symbols.
        name: name of the model.
        grids: the grids to compute on; None for float16.

    Raises:
        NotTaken: an instruction that is not attention reads a cache's new content, a
            tensor has no elements, or a value has no grid.
    """
    return _Translator(graph, sizes, grids).translate(name)


class _Translator:
    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], grids: Grids | None
    ) -> None:
        self._graph, self._sizes, self._grids = graph, sizes, grids
        self._emitters, self._emitter = EMITTERS, Emitter()
        if grids is not None:
            own = {f"v{value}": grid for value, grid in grids.values.items()}
            self._emitters, self._emitter = FIXED, FixedEmitter(own)
        self._contents: dict[tuple[int, Sight], str] = {}
        self._names: dict[int, str] = {}
        self._updates: dict[int, Update] = {}
        self._host: dict[int, int] = {value: value for value in graph.inputs}
        self._feeds: dict[object, Feed] = {}
        self._stored: dict[str, Stored] = {}
        for value, each in enumerate(graph.values):
            if isinstance(each.storage, Constant):
                self._host[value] = value

    def translate(self, name: str) -> Plan:
        for instruction in self._graph.instructions:
            self._translate(instruction)
        takes, handed = self._outputs()
        model = self._emitter.model(name, tuple(takes))
        feeds = {feed.name: feed for feed in self._feeds.values()}
        return Plan(
            model,
            tuple(self._stored[weight.name] for weight in model.weights),
            tuple(feeds[value.name] for value in model.inputs),
            tuple(tuple(takes[value.name]) for value in model.outputs),
            tuple(handed),
            self._grids_of(model),
        )

    def _grids_of(self, model: Model) -> Mapping[str, Grid]:
        """Return the grids of a model's inputs and outputs, by name; {} in float16."""
        if not isinstance(self._emitter, FixedEmitter):
            return {}
        grids = self._emitter.grids
        return {v.name: grids[v.name] for v in (*model.inputs, *model.outputs)}

    def _grid(self, value: int) -> Grid | None:
        """Return the grid of a value; None in float16, or if the value has none."""
        return None if self._grids is None else self._grids.values.get(value)

    def _translate(self, instruction: Instruction) -> None:
        if instruction.op == CACHE_UPDATE:
            self._update(instruction)
        elif instruction.op == ATTENTION:
            self._attend(instruction)
        elif OPS[instruction.op].aliasing is Aliasing.CHECK:
            self._check(instruction)
        elif self._on_host(instruction):
            for result in instruction.results:
                self._host[result] = result
        else:
            self._compute(instruction)

    def _check(self, instruction: Instruction) -> None:
        """Check that the host has the operands of a check instruction."""
        for argument in instruction.arguments:
            if isinstance(argument, Ref):
                self._host_value(argument)

    def _on_host(self, instruction: Instruction) -> bool:
        """Tell whether an instruction is a view of a value that the host has."""
        first = instruction.arguments[0] if instruction.arguments else None
        is_view = OPS[instruction.op].aliasing is Aliasing.VIEW
        return is_view and isinstance(first, Ref) and first.value in self._host

    def _compute(self, instruction: Instruction) -> None:
        emit, step = self._emitters[instruction.op], self._step(instruction)
        arguments = [settled(each, self._sizes) for each in instruction.arguments]
        made = emit(step, *arguments)
        given = [made] if isinstance(made, str) else made
        self._names.update(zip(instruction.results, given, strict=True))

    def _step(self, instruction: Instruction) -> Step:
        results = instruction.results
        scores = None if self._grids is None else self._grids.scores.get(results[0])
        return Step(
            self._emitter,
            self._read,
            [f"v{result}" for result in results],
            [self._shape(result) for result in results],
            self._weight,
            self._channels,
            None if scores is None else reach_of(scores),
        )

    def _read(self, ref: object) -> str:
        """Return the device's name of an operand; a host's operand becomes a feed."""
        assert isinstance(ref, Ref)
        value = ref.value
        if value in self._updates:
            raise NotTaken(
                "an instruction other than attention reads a cache's new content"
            )
        if value in self._names:
            return self._names[value]
        if isinstance(self._graph.values[value].storage, Constant):
            return self._weight(ref, False)
        name = f"x{value}"
        feed = Whole(name, value)
        self._feed(("whole", value), feed, self._shape(value), self._grid(value))
        self._names[value] = name
        return name

    def _weight(self, ref: object, transposed: bool) -> str:
        """Return the device's name of a constant, with swapped axes if `transposed`."""
        assert isinstance(ref, Ref)
        storage = self._graph.values[ref.value].storage
        if not isinstance(storage, Constant):
            raise NotTaken("a weight is not a constant")
        shape = self._shape(ref.value)
        if transposed:
            shape = shape[::-1]
        name = f"w{storage.name}{'t' if transposed else ''}"
        grid = self._grid(ref.value)
        if name in self._stored:  # a constant of two values has the first one's grid
            return name
        self._stored[name] = Stored(name, storage.name, transposed, grid)
        return self._emitter.weight(name, shape, grid)

    def _channels(self, ref: object, scale: object) -> str:
        """Return the device's name of the transpose of an int8 matrix [out, in]."""
        assert isinstance(ref, Ref)
        assert isinstance(scale, Ref)
        shape = self._shape(ref.value)[::-1]
        turned, scales = self._exact(ref, True), self._exact(scale, False)
        return self._emitter.channels(turned, scales, shape)

    def _exact(self, ref: Ref, transposed: bool) -> str:
        """Return the device's name of a constant that is stored unchanged."""
        storage = self._graph.values[ref.value].storage
        if not isinstance(storage, Constant):
            raise NotTaken("a weight is not a constant")
        name = f"w{storage.name}{'t' if transposed else 's'}"
        self._stored[name] = Stored(name, storage.name, transposed, None, True)
        return name

    def _feed(
        self,
        key: object,
        feed: Feed,
        shape: tuple[int, ...],
        grid: Grid | None = None,
    ) -> str:
        found = self._feeds.setdefault(key, feed)
        if found is feed:
            self._emitter.input(feed.name, shape, grid)
        return found.name

    def _shape(self, value: int) -> tuple[int, ...]:
        shape = self._graph.values[value].type.shape(self._sizes)
        if 0 in shape:
            raise NotTaken(f"a tensor of {list(shape)} has no elements")
        return shape

    def _update(self, instruction: Instruction) -> None:
        cache, update, start, _, mode, lengths, keep = instruction.arguments
        assert isinstance(cache, Ref)
        assert isinstance(mode, str)
        assert isinstance(keep, int)
        if cache.value not in self._host:
            raise NotTaken("another instruction of the partition computes a cache")
        assert isinstance(update, Ref)
        writes = Writes(
            self._host_value(start),
            self._host_value(lengths),
            self._shape(update.value)[2],
            self._shape(cache.value)[2],
            mode,
            keep,
        )
        place = (writes.start, writes.lengths, mode, keep)
        (result,) = instruction.results
        rows = self._on_grid_of(cache.value, self._read(update), f"rows{result}")
        self._updates[result] = Update(cache.value, rows, place, writes)

    def _on_grid_of(self, value: int, name: str, output: str) -> str:
        """Convert the tensor `name` to the grid of a value; return the new name."""
        if self._grids is None:
            return name
        grid = self._grid(value)
        if grid is None:
            raise NotTaken(f"there is no grid for value {value}")
        return self._emitter.converted(name, output, grid)

    def _host_value(self, argument: Argument) -> int | None:
        """Return the id of a value that the host has; None if the argument is None."""
        if argument is None:
            return None
        assert isinstance(argument, Ref)
        if argument.value not in self._host:
            raise NotTaken(
                "the position of a cache access is computed inside the partition"
            )
        return argument.value

    def _attend(self, instruction: Instruction) -> None:
        arguments = [settled(each, self._sizes) for each in instruction.arguments]
        q, k, v, _, scale, causal, left, right, softcap = arguments[:9]
        mask, slopes, _, layout, *_, keep = arguments[9:]
        assert isinstance(q, Ref)
        assert isinstance(k, Ref)
        assert isinstance(v, Ref)
        batch, heads, queries, width = self._shape(q.value)
        written = [self._updates.get(each.value) for each in (k, v)]
        writes = same_place(written, layout, keep)
        valid = self._host_value(instruction.arguments[3])
        assert valid is not None, "its signature requires it"
        apart = slopes is not None or (
            isinstance(mask, Ref) and self._shape(mask.value)[1] > 1
        )
        sight = Sight(
            batch=batch,
            heads=heads if apart else 1,
            queries=queries,
            slots=self._shape(k.value)[2],
            total=valid,
            lengths=self._host_value(instruction.arguments[15]),
            causal=bool(causal),
            left=left if isinstance(left, int) else None,
            right=right if isinstance(right, int) else None,
            ring=layout == "circular",
            keep=keep if isinstance(keep, int) else 0,
            mask=self._host_value(instruction.arguments[9]),
            slopes=self._host_value(instruction.arguments[10]),
            writes=writes,
        )
        keys, values = (
            self._content(each, update, sight)
            for each, update in zip((k, v), written, strict=True)
        )
        number = len(self._feeds)
        bias = self._feed(
            ("bias", sight),
            Bias(f"bias{number}", sight),
            sight.bias_shape,
            None if self._grids is None else hiding(self._grids),
        )
        seeing = self._feed(
            ("seeing", sight),
            Seeing(f"seeing{number}", sight),
            (*sight.bias_shape[:3], 1),
            grid_of((0.0, 1.0)),
        )
        step = self._step(instruction)
        factor = scale if isinstance(scale, float) else 1 / np.sqrt(width)
        cap = softcap if isinstance(softcap, float) else None
        made = step.attend(
            self._read(q),
            (batch, heads, queries, width),
            (keys, values),
            self._shape(k.value)[1],
            sight.columns,
            float(factor),
            cap,
            bias,
            seeing,
        )
        self._names[instruction.results[0]] = made

    def _content(self, ref: Ref, update: Update | None, sight: Sight) -> str:
        """Return the device's name of keys or values [batch, heads, columns, width].

        After a cache update, the columns are the slots of the old content, then the new
        rows.
        """
        if update is not None:
            old = self._past(update.cache, sight)
            key = ref.value, sight
            if key not in self._contents:
                batch, heads, slots, width = self._shape(ref.value)
                shape = (batch, heads, slots + update.writes.rows, width)
                name = f"v{ref.value}_{len(self._contents)}"
                given = (old, update.rows)
                self._contents[key] = self._emitter.node(
                    "Concat", given, name, shape, like=f"v{update.cache}", axis=2
                )
            return self._contents[key]
        if ref.value in self._host:
            return self._past(ref.value, sight)
        return self._read(ref)

    def _past(self, value: int, sight: Sight) -> str:
        feed = Past(f"past{value}_{len(self._feeds)}", value, sight)
        shape, grid = self._shape(value), self._grid(value)
        return self._feed(("past", value, sight), feed, shape, grid)

    def _outputs(self) -> tuple[dict[str, list[Made | Rows]], list[Handed]]:
        """Return the outputs of the graph, by where they come from.

        Returns:
            The uses of each of the device's results, by the result's name; and the
            outputs that the host has without the device.
        """
        takes: dict[str, list[Made | Rows]] = {}
        handed: list[Handed] = []
        for number, value in enumerate(self._graph.outputs):
            update = self._updates.get(value)
            if update is not None:
                rows = Rows(update.rows, number, update.cache, update.writes)
                takes.setdefault(self._given_back(update.rows), []).append(rows)
            elif value in self._host:
                handed.append(Handed(number, value))
            else:
                name = self._given_back(self._names[value])
                takes.setdefault(name, []).append(Made(name, number))
        return takes, handed

    def _given_back(self, name: str) -> str:
        """Return a tensor's name as an output of the model.

        A tensor that no node computes, such as an input, is copied by a node.
        """
        if name in self._emitter.made:
            return name
        copy = f"{name}_out"
        if copy not in self._emitter.made:
            one = self._emitter.number(f"{copy}_one", 1.0)
            self._emitter.node("Mul", (name, one), copy, self._emitter.shapes[name])
        return copy
