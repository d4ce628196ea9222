"""Translate a partition, at one set of sizes, to a model of ONNX and a `Plan`.

In: a block that `kvc.schema.backends.qnn` supports; if grids are given, a block that
`kvc.schema.backends.qnn_fixed` supports. Out: nodes of float16 or on integers, and the
host's work before and after the device runs. The device does not change caches. The
device gets the old content, attends to old content and new rows side by side, and
returns the new rows. Therefore only attention can read a cache's new content.
"""

from collections.abc import Mapping
from typing import Final

from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.host_runs import Handed
from kvc.runtime.delegates.lowering.attention import scale_of
from kvc.runtime.delegates.lowering.builder import FLOAT, NotTaken
from kvc.runtime.delegates.lowering.context import DeviceTraits, Emit
from kvc.runtime.delegates.lowering.partition import BlockLowering
from kvc.runtime.delegates.operands import settled
from kvc.runtime.delegates.qnn import forms
from kvc.runtime.delegates.qnn.attention_masks import Sight, Update, hiding, same_place
from kvc.runtime.delegates.qnn.curves import HalfEmitter
from kvc.runtime.delegates.qnn.emitting import Emitter
from kvc.runtime.delegates.qnn.fixed_emitting import FixedEmitter, grid_of
from kvc.runtime.delegates.qnn.forms import QnnBuilder
from kvc.runtime.delegates.qnn.model_file import Model
from kvc.runtime.delegates.qnn.nodes import CONVERTED, NodeWriter, plain
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
from kvc.schema.backends.grids import Grid
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.backends.primitives import Primitive
from kvc.schema.backends.qnn import PRIMITIVES, PRODUCT
from kvc.schema.backends.qnn_fixed import LINEAR, Grids
from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant, Graph, Instruction, Ref
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing

_FORMS: Final[Mapping[str, Emit]] = {
    "aten::rms_norm": forms.rms_norm,
    "aten::layer_norm": forms.layer_norm,
    "kvc::rotary_embedding": forms.rotary,
    PRODUCT: forms.attention_product,
    LINEAR: forms.int8_linear,
}
_DTYPES: Final = {
    DType.FLOAT32: FLOAT,
    DType.FLOAT16: FLOAT,
    DType.INT8: "int8",
    DType.INT64: "int64",
    DType.INT32: "int32",
    DType.BOOL: "bool",
}
_TRAITS: Final = DeviceTraits(
    PRIMITIVES | {Primitive.MEAN}, _DTYPES, wide=False, forms=_FORMS
)
_FIXED_TRAITS: Final = DeviceTraits(
    _TRAITS.primitives,
    _DTYPES,
    wide=False,
    forms={**_FORMS, "aten::layer_norm": forms.fixed_layer_norm},
)


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
        NotTaken: an instruction that is not attention reads a cache's new content, the
            partition computes a cache or a position of a cache access, a tensor has no
            elements, a value has no grid, or QNN cannot express a constant.
    """
    return _Translator(graph, sizes, grids).translate(name)


class _Translator(BlockLowering):
    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], grids: Grids | None
    ) -> None:
        traits = _TRAITS if grids is None else _FIXED_TRAITS
        self._own = QnnBuilder(traits.primitives)
        super().__init__(graph, sizes, traits, self._own)
        self._grids = grids
        self._updates: dict[int, Update] = {}
        self._feeds: dict[object, Feed] = {}
        self._given: dict[str, Grid | None] = {}  # the grids of inputs
        self._weights: dict[str, tuple[int, Grid | None]] = {}
        self._stored: dict[str, Stored] = {}
        self._own_grids: dict[str, Grid] = {}  # of a cache's new rows

    def translate(self, name: str) -> Plan:
        for instruction in self._graph.instructions:
            self._translate(instruction)
        writer = self._written()
        takes, handed = self._outputs(writer)
        model = writer.emitter.model(name, tuple(takes))
        feeds = {feed.name: feed for feed in self._feeds.values()}
        return Plan(
            model,
            tuple(self._stored[weight.name] for weight in model.weights),
            tuple(feeds[value.name] for value in model.inputs),
            tuple(tuple(takes[value.name]) for value in model.outputs),
            tuple(handed),
            _grids_of(writer.emitter, model),
        )

    def _written(self) -> NodeWriter:
        """Write all nodes of the model, and return the writer."""
        emitter: Emitter = HalfEmitter()
        if self._grids is not None:
            grids = {plain(name): grid for name, grid in self._own_grids.items()}
            for value, made in self._made.items():
                if value in self._grids.values:
                    grids.setdefault(plain(made), self._grids.values[value])
            emitter = FixedEmitter(grids)
        for given, grid in self._given.items():
            emitter.input(given, self._build.shape(given), grid)
        rows = (each.rows for each in self._updates.values())
        outputs = {name: name for name in (*self._made.values(), *rows)}
        function = self._build.function("", {}, outputs)

        def store(tensor: str, transposed: bool) -> str:
            return self._store(emitter, tensor, transposed)

        own = self._own
        writer = NodeWriter(function, emitter, own.numbers, own.scores, store)
        writer.write()
        return writer

    def _grid(self, value: int) -> Grid | None:
        """Return the grid of a value; None in float16, or if the value has no grid."""
        return None if self._grids is None else self._grids.values.get(value)

    def _translate(self, instruction: Instruction) -> None:
        if instruction.op == CACHE_UPDATE:
            self._update(instruction)
        elif instruction.op == ATTENTION:
            self._attend(instruction)
        elif OPS[instruction.op].aliasing is Aliasing.CHECK:
            self._check(instruction)
        elif self._views_host(instruction):
            self._host |= {*instruction.results}
        else:
            self._expect_scores(instruction)
            made = self.lower(self._graph, instruction, self._read)
            self._made.update(zip(instruction.results, made, strict=True))
            self._own.range_of_products = None

    def _expect_scores(self, instruction: Instruction) -> None:
        """On integers, tell the builder the range of the scores of an attention."""
        if self._grids is not None:
            scores = self._grids.scores.get(instruction.results[0])
            self._own.range_of_products = None if scores is None else reach_of(scores)

    def _read(self, ref: object, dtype: str = FLOAT) -> str:
        """Return the name of an operand; add a feed for the operand if necessary.

        Raises:
            NotTaken: the operand is a cache's new content.
        """
        assert isinstance(ref, Ref)
        value = ref.value
        if value in self._updates:
            raise NotTaken(
                "an instruction other than attention reads a cache's new content"
            )
        if value in self._made:
            return self._made[value]
        storage = self._graph.values[value].storage
        shape = self.shape(self._graph, value)
        if isinstance(storage, Constant):
            own = self.dtype(self._graph, value)
            name = self._build.weight(storage.name, own, shape)
            self._weights.setdefault(name, (storage.name, self._grid(value)))
            return name
        name = f"x{value}"
        self._feed(("whole", value), Whole(name, value), shape, self._grid(value))
        self._made[value] = name
        return name

    def _store(self, emitter: Emitter, tensor: str, transposed: bool) -> str:
        """Add a constant to the model, and return the constant's name in the model.

        Args:
            emitter: collects the nodes.
            tensor: the name of the constant in the function.
            transposed: whether the model stores the matrix transposed.
        """
        data, grid = self._weights[tensor]
        is_exact = tensor in self._own.unrounded
        turned = "t" if transposed else "s" if is_exact else ""
        name = f"w{data}{turned}"
        if name in self._stored:  # a constant of two values has the first one's grid
            return name
        exact = None if is_exact else grid
        self._stored[name] = Stored(name, data, transposed, exact, is_exact)
        shape = self._build.shape(tensor)
        if not is_exact:
            emitter.weight(name, shape[::-1] if transposed else shape, grid)
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
            self._given[self._build.input(feed.name, FLOAT, shape)] = grid
        return found.name

    def _update(self, instruction: Instruction) -> None:
        cache, update, start, _, mode, lengths, keep = instruction.arguments
        assert isinstance(cache, Ref)
        assert isinstance(update, Ref)
        assert isinstance(keep, int)
        if cache.value not in self._host:
            raise NotTaken("another instruction of the partition computes a cache")
        where = self._host_value(start), self._host_value(lengths)
        count, slots = (
            self.shape(self._graph, each.value)[2] for each in (update, cache)
        )
        writes = Writes(*where, count, slots, str(mode), keep)
        rows = self._on_grid_of(cache.value, self._read(update))
        place = (*where, mode, keep)
        (result,) = instruction.results
        self._updates[result] = Update(cache.value, rows, place, writes)

    def _on_grid_of(self, value: int, name: str) -> str:
        """Convert the tensor `name` to the grid of a value; return the new name."""
        if self._grids is None:
            return name
        grid = self._grid(value)
        if grid is None:
            raise NotTaken(f"there is no grid for value {value}")
        shape = self._build.shape(name)
        made = self._build.operation(CONVERTED, (name,), FLOAT, shape, value=value)
        self._own_grids[made] = grid
        return made

    def _attend(self, instruction: Instruction) -> None:
        arguments = [settled(each, self._sizes) for each in instruction.arguments]
        q, k, v, _, scale, causal, left, right, softcap = arguments[:9]
        mask, slopes, _, layout, *_, keep = arguments[9:]
        assert isinstance(k, Ref)
        assert isinstance(v, Ref)
        assert isinstance(keep, int)
        query = self._read(q)
        batch, heads, queries, _ = self._build.shape(query)
        written = [self._updates.get(each.value) for each in (k, v)]
        writes = same_place(written, layout, keep)
        valid = self._host_value(instruction.arguments[3])
        assert valid is not None, "its signature requires it"
        differ = slopes is not None or (
            isinstance(mask, Ref) and self.shape(self._graph, mask.value)[1] > 1
        )
        sight = Sight(
            batch=batch,
            heads=heads if differ else 1,
            queries=queries,
            slots=self.shape(self._graph, k.value)[2],
            total=valid,
            lengths=self._host_value(instruction.arguments[15]),
            causal=bool(causal),
            left=left if isinstance(left, int) else None,
            right=right if isinstance(right, int) else None,
            ring=layout == "circular",
            keep=keep,
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
        self._expect_scores(instruction)
        factor = scale if isinstance(scale, float) else None
        made = forms.attend(
            self._own,
            query,
            (keys, values),
            scale_of(self._own, factor, query),
            softcap if isinstance(softcap, float) else None,
            bias,
            seeing,
        )
        self._own.range_of_products = None
        self._made[instruction.results[0]] = made

    def _content(self, ref: Ref, update: Update | None, sight: Sight) -> str:
        """Return the name of keys or values, [batch, heads, columns, width].

        After a cache update, the columns are the slots of the old content, then the new
        rows.
        """
        if update is not None:
            return self._build.concat((self._past(update.cache, sight), update.rows), 2)
        return (
            self._past(ref.value, sight) if ref.value in self._host else self._read(ref)
        )

    def _past(self, value: int, sight: Sight) -> str:
        feed = Past(f"past{value}_{len(self._feeds)}", value, sight)
        shape, grid = self.shape(self._graph, value), self._grid(value)
        return self._feed(("past", value, sight), feed, shape, grid)

    def _outputs(
        self, writer: NodeWriter
    ) -> tuple[dict[str, list[Made | Rows]], list[Handed]]:
        """Return the outputs of the graph, in two parts.

        Returns:
            The uses of each of the device's results, by the result's name; and the
            outputs that the host has without the device.
        """
        takes: dict[str, list[Made | Rows]] = {}
        handed: list[Handed] = []
        for number, value in enumerate(self._graph.outputs):
            update = self._updates.get(value)
            if update is not None:
                name = writer.result(update.rows)
                rows = Rows(name, number, update.cache, update.writes)
                takes.setdefault(name, []).append(rows)
            elif value in self._host:
                handed.append(Handed(number, value))
            else:
                name = writer.result(self._made[value])
                takes.setdefault(name, []).append(Made(name, number))
        return takes, handed


def _grids_of(emitter: Emitter, model: Model) -> Mapping[str, Grid]:
    """Return the grids of a model's inputs and outputs; no grids in float16."""
    if not isinstance(emitter, FixedEmitter):
        return {}
    return {v.name: emitter.grids[v.name] for v in (*model.inputs, *model.outputs)}
