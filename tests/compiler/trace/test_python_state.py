import functools
import signal
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import small_models
import torch
from daily import every
from small_models import PythonState as Counts
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.compiler.trace import Unchanged, capture
from kvc.compiler.trace.python_state import PythonState
from kvc.schema.errors import CaptureError

X = torch.ones(2)
SEEN = []
STATE = SimpleNamespace(count=0)
calls = 0


class Counter:
    """Counts for all."""

    count = 0


def helper():
    """Has attributes."""


def counted():
    global calls
    calls += 1
    return calls


@pytest.mark.parametrize(
    ("method", "attribute"),
    [
        ("count", "'position'"),
        ("grow", "'past'"),
        ("named_item", "named"),
        ("attribute", "'plain'"),
    ],
)
def test_state_in_python_attributes_is_refused(method, attribute):
    model = Counts()
    with pytest.raises(CaptureError, match=f"changes the attribute .*{attribute}"):
        capture(model, Method(method, (X,)))


def test_torch_says_nothing_of_its_own_while_tracing(capfd):
    class Asks(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else x + 1

    with pytest.raises(CaptureError, match="asks for the value of a tensor"):
        capture(Asks(), Method("forward", (torch.ones(3),)))
    assert capfd.readouterr().err == ""


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("__weakref__", "count", "late")

    def __init__(self):
        self.count = 0


class Hidden(nn.Module):
    """Keeps Python state where it is not looked for."""

    shared = 0
    kept = {"calls": []}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.box = SimpleNamespace(count=0, deeper=SimpleNamespace(row=[]))
        self.box.tensor = torch.ones(2)
        self.box.itself = self.box
        self.slotted = Slotted()
        self.names, self.row = {"a"}, deque([1, 2])
        self.ordered = OrderedDict(a=1, b=2)
        self.array = np.zeros(3)
        self.raw = bytearray(b"abc")
        self.pair = (SimpleNamespace(count=0), 1)
        self.act = nn.ReLU()
        self.typed = array("i", [0])
        self.hook_calls = 0
        self.hooked = nn.Identity()
        seen = []
        hook = self.hooked.register_forward_hook(lambda *a: seen.append(a[2]))
        self.hook_id, self.seen = hook.id, seen
        self.register_buffer("k", torch.ones(2))
        self.eval()
        count = 0

        def closure():
            nonlocal count
            count += 1
            return count

        self.closure = closure
        self.partial = functools.partial(lambda held, x: held.append(1) or x, [])

    @functools.cached_property
    def twice(self):
        return self.k * 2

    def of_object(self, x):
        self.box.count += 1
        return x * self.box.count

    def of_deeper_object(self, x):
        self.box.deeper.row.append(1)
        return x * len(self.box.deeper.row)

    def of_slots(self, x):
        self.slotted.count += 1
        return x * self.slotted.count

    def of_new_slot(self, x):
        self.slotted.late = 1
        return x * 1

    def of_class(self, x):
        type(self).shared += 1
        return x * self.shared

    def of_container_of_class(self, x):
        self.kept["calls"].append(1)
        return x * len(self.kept["calls"])

    def of_set(self, x):
        self.names.add("b")
        return x * len(self.names)

    def of_deque(self, x):
        self.row.rotate()
        return x * self.row[0]

    def of_order(self, x):
        self.ordered["c"] = self.ordered.pop("a")
        return x * 1

    def of_array(self, x):
        self.array[0] += 1
        return x * float(self.array[0])

    def of_bytes(self, x):
        self.raw[0] += 1
        return x * self.raw[0]

    def of_tuple(self, x):
        self.pair[0].count += 1
        return x * self.pair[0].count

    def of_closure(self, x):
        return x * self.closure()

    def of_partial(self, x):
        return self.partial(x) * 1

    def of_default(self, x, held=[]):  # noqa: B006
        held.append(1)
        return x * len(held)

    def of_global(self, x):
        global calls
        calls += 1
        return x * calls

    def of_container_of_globals(self, x):
        SEEN.append(1)
        return x * len(SEEN)

    def of_module(self, x):
        self.act = nn.Identity()
        return self.act(x)

    def of_object_among_globals(self, x):
        STATE.count += 1
        return x * STATE.count

    def of_function(self, x):
        helper.calls = getattr(helper, "calls", 0) + 1
        return x * helper.calls

    def of_global_of_a_function(self, x):
        return x * counted()

    def of_typed_array(self, x):
        self.typed[0] += 1
        return x * self.typed[0]

    def of_cached_tensor(self, x):
        return x + self.twice

    def of_mode(self, x):
        x = x * 2 if self.training else x
        self.train()
        return x

    def of_hook_calls(self, x):
        self.hook_calls += 1
        return x * self.hook_calls

    def of_hook(self, x):
        return self.hooked(x) * 1

    def of_new_hook(self, x):
        self.act.register_forward_hook(lambda *_: None)
        return self.act(x)

    def of_another_class(self, x):
        Counter.count += 1
        return x * Counter.count

    def of_nested_function(self, x):
        def note():
            SEEN.append(1)
            return len(SEEN)

        return x * note()

    def of_another_module(self, x):
        small_models.TOUCHED += 1
        return x * small_models.TOUCHED

    def of_tensor(self, x):
        self.box.tensor.calls = 1
        return x + self.box.tensor

    def of_deleted(self, x):
        del self.box
        return x * 1


PLACES = {
    "of_object": "box.count",
    "of_deeper_object": "box.deeper.row",
    "of_slots": "slotted.count",
    "of_new_slot": "slotted.late",
    "of_class": "Hidden.shared",
    "of_container_of_class": "Hidden.kept['calls']",
    "of_set": "names",
    "of_deque": "row[0]",
    "of_order": "ordered",
    "of_array": "array",
    "of_bytes": "raw",
    "of_tuple": "pair[0].count",
    "of_closure": "closure, variable count",
    "of_partial": "partial[0]",
    "of_default": "Hidden.of_default, a default[0]",
    "of_global": f"{__name__}.calls",
    "of_container_of_globals": f"{__name__}.SEEN",
    "of_module": "act",
    "of_object_among_globals": f"{__name__}.STATE.count",
    "of_function": f"{__name__}.helper.calls",
    "of_global_of_a_function": f"{__name__}.calls",
    "of_typed_array": "typed",
    "of_cached_tensor": "twice",
    "of_mode": "training",
    "of_hook_calls": "hook_calls",
    "of_hook": "seen",
    "of_new_hook": "act._forward_hooks",
    "of_another_class": "Counter.count",
    "of_nested_function": f"{__name__}.SEEN",
    "of_another_module": "small_models.TOUCHED",
    "of_tensor": "box.tensor.calls",
    "of_deleted": "box",
}


def contents(model):
    """Return everything that the methods above change."""
    return (
        [*vars(model)],
        {n: id(m) for n, m in model.named_modules()},
        (model.box.count, [*model.box.deeper.row], model.pair[0].count),
        (model.slotted.count, hasattr(model.slotted, "late")),
        (Hidden.shared, {k: [*v] for k, v in Hidden.kept.items()}),
        (sorted(model.names), [*model.row], [*model.ordered.items()]),
        (model.array.tolist(), bytes(model.raw), [*model.partial.args[0]]),
        model.closure.__closure__[0].cell_contents,
        [*Hidden.of_default.__defaults__[0]],
        (calls, [*SEEN], STATE.count, vars(helper).copy(), Counter.count),
        (small_models.TOUCHED, vars(model.box.tensor).copy()),
        (model.typed.tolist(), model.training, model.hook_calls, [*model.seen]),
        [*model.act._forward_hooks],
    )


@pytest.mark.parametrize("name", PLACES)
def test_python_state_is_found_wherever_it_is_and_put_back(name):
    model = Hidden()
    before = contents(model)
    with pytest.raises(CaptureError) as caught:
        capture(model, Method(name, (X,)))
    reason = caught.value.facts["reason"].replace(f"[{model.hook_id}]", "[KEY]")
    assert reason.startswith(
        f"it changes the attribute {PLACES[name]!r}, which tracing"
    )
    assert contents(model) == before


class Harmless(nn.Module):
    """Changes nothing that another call would notice."""

    def __init__(self):
        super().__init__()
        self.sizes, self.box = [1, 2], SimpleNamespace(shape=(2,), width=2)

    @functools.cached_property
    def table(self):
        return {"scale": 2.0}

    def forward(self, x):
        self.sizes = [1, 2]
        self.box.shape = tuple(x.shape)
        self.box.width = x.shape[0]
        return x * self.table["scale"]


def test_equal_values_and_cached_properties_are_no_change():
    model = Harmless()
    sizes = model.sizes
    capture(model, Method("forward", (X,)))
    assert model.sizes is sizes
    assert "table" not in vars(model)


def test_everything_is_put_back_in_place():
    held = {"a": [1, {2}], "b": SimpleNamespace(c=deque("xy"))}
    state = PythonState(held)
    row, box = held["a"], held["b"]
    held["a"] = None
    row[1].add(3)
    row.reverse()
    box.c.clear()
    box.d = 1
    del held["b"]
    state.restore()
    assert held == {"a": [1, {2}], "b": box}
    assert held["a"] is row
    assert vars(box) == {"c": deque("xy")}
    assert state.changed() is None


def test_a_module_of_many_parts_takes_little_time_to_walk():
    layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2) for _ in range(30))
    state = PythonState(layers)
    assert len(state.tensors) == 30 * 12
    assert state.changed() is None


class Model(nn.Module):
    """Reassigns, writes through an alias, and calls a module within."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.inner.weight
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))
        self.box = SimpleNamespace(total=self.total)

    def step(self, x):
        self.last = self.last + x
        self.box.total.add_(x)
        return self.tied(self.inner(self.total)) + self.last


METHODS = [Method("step", (torch.ones(3),))]


def held(model):
    """Return every object of a model, and what tensors hold."""
    found = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            found[path, name] = value if isinstance(value, dict) else id(value)
            if isinstance(value, dict):
                found[path, name] = {k: id(v) for k, v in value.items()}
    tensors = {n: t.tolist() for n, t in model.state_dict().items()}
    return found, tensors, id(model.box.total)


@contextmanager
def interrupted(at: int, again: int) -> Iterator[list[int]]:
    """Send SIGINT at a call of a Python function, and at later ones again."""
    count = [0]

    def profile(frame, event, arg):
        if event == "call":
            count[0] += 1
            if count[0] == at or (count[0] > at and (count[0] - at) % again == 0):
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(profile)
    try:
        yield count
    finally:
        sys.setprofile(None)


@pytest.fixture
def total() -> int:
    """How many functions a compilation calls now; after an interrupt they are fewer."""
    compile_program(Model(), METHODS)
    with interrupted(sys.maxsize, 1) as count:
        compile_program(Model(), METHODS)
    return count[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@every(2, "share", "again")
@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9])
@pytest.mark.parametrize("again", [sys.maxsize, 40])
def test_an_interrupted_compilation_leaves_the_model_as_it_was(share, again, total):
    model = Model()
    before = held(model)
    with pytest.raises(KeyboardInterrupt), interrupted(int(total * share), again):
        compile_program(model, METHODS)
    assert held(model) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    compile_program(model, METHODS)


def test_an_interrupt_in_the_traced_method_stays_one():
    model = Model()
    model.inner.register_forward_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    before = held(model)
    with pytest.raises(KeyboardInterrupt):
        compile_program(model, METHODS)
    assert held(model) == before


def test_an_interrupt_while_things_are_put_back_waits_until_they_are():
    box = SimpleNamespace(row=[1, 2])
    kept = Unchanged(box)
    restore = kept.state.restore

    def interrupted_restore() -> None:
        signal.raise_signal(signal.SIGINT)
        restore()

    kept.state.restore = interrupted_restore
    with pytest.raises(KeyboardInterrupt), kept:
        box.row.append(3)
    assert box.row == [1, 2]


def test_a_handler_of_the_users_own_is_left_alone():
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        with Unchanged(SimpleNamespace()):
            signal.raise_signal(signal.SIGINT)
        assert calls == [1]
    finally:
        signal.signal(signal.SIGINT, before)
