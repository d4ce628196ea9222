"""What bodies of branches and loops write outside of them."""

import inspect

import pytest
import torch
from eager_parity import same
from module_outcomes import Applied, outcome
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.compiler.trace import capture
from kvc.runtime import load
from kvc.schema.errors import CaptureError, CompileError
from kvc.tools.reports.memory import describe_copies

P, X, START = torch.tensor(True), torch.ones(3, 4), torch.tensor(0)


class Writing(nn.Module):
    """Each method writes into a buffer in a body, one of them by an assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(8, 4))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def a_view_of_a_buffer(self, p: Tensor, x: Tensor) -> Tensor:
        def yes(x: Tensor) -> Tensor:
            self.c[0] = x[0]
            return x * 2

        return torch.cond(p, yes, lambda x: x + 1, (x,))

    def a_counter_within_a_branch(self, p: Tensor, x: Tensor) -> Tensor:
        def yes(x: Tensor) -> Tensor:
            def inner(x: Tensor) -> Tensor:
                self.n.add_(1)
                return x * 1

            return torch.cond(p, inner, lambda x: x * 3, (x,))

        return torch.cond(p, yes, lambda x: x + 1, (x,))

    def what_is_passed(self, p: Tensor, x: Tensor) -> Tensor:
        def yes(c: Tensor, x: Tensor) -> Tensor:
            c.index_copy_(0, torch.ones(1, dtype=torch.int64), x[:1])
            return x * 2

        return torch.cond(p, yes, lambda c, x: x + 1, (self.c, x))

    def in_a_loop(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            self.c[0].add_(x[0])
            return i + 1, x * 2

        return torch.while_loop(lambda i, x: i < 3, body, (START, x))

    def in_a_scan(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            self.c[0].add_(x)
            return h + 1, x * 2

        return scan(step, x[0], x)

    def in_a_map(self, p: Tensor, x: Tensor) -> Tensor:
        def each(x: Tensor, y: Tensor) -> Tensor:
            self.n.add_(1)
            return x * 2

        return map_over(each, x, x * 2)

    def a_row_and_the_whole(self, p: Tensor, x: Tensor) -> Tensor:
        row, turned = self.c[0], self.c.t()

        def yes(x: Tensor) -> Tensor:
            row.add_(1)
            turned[1].mul_(x.sum())
            return x + self.c.sum()

        return torch.cond(p, yes, lambda x: x * 2, (x,))

    def rows_of_a_loop(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        row = self.c[1]

        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            row.add_(x[0])
            self.c.mul_(2)
            return i + 1, x + self.c[:3]

        return torch.while_loop(lambda i, x: i < 3, body, (START, x))

    def held(self) -> tuple[Tensor, Tensor]:
        return self.c * 1, self.n * 1

    def an_attribute(self, p: Tensor, x: Tensor) -> Tensor:
        def yes(x: Tensor) -> Tensor:
            self.c = self.c + 1
            return x * 2

        return torch.cond(p, yes, lambda x: x + 1, (x,))


def marked_line(name: str) -> int:
    lines, first = inspect.getsourcelines(getattr(Writing, name))
    return first + next(i for i, line in enumerate(lines) if "# here" in line)


WRITES = [
    *("a_view_of_a_buffer", "a_counter_within_a_branch", "what_is_passed"),
    *("in_a_loop", "in_a_scan", "in_a_map", "a_row_and_the_whole", "rows_of_a_loop"),
]


def _cond(pred, yes, no, operands):
    return (yes if pred else no)(*operands)


def _while(test, body, carried):
    while test(*carried):
        carried = body(*carried)
    return carried


def _scan(step, carried, xs):
    made = []
    for x in xs:
        carried, y = step(carried, x)
        made.append(y)
    return carried, torch.stack(made)


def _map(body, xs, other):
    return torch.stack([body(x, other) for x in xs])


@pytest.fixture
def in_python(monkeypatch):
    """Replace torch's branches and loops, which write nothing, by those of Python."""

    def replaced():
        monkeypatch.setattr(torch, "cond", _cond)
        monkeypatch.setattr(torch, "while_loop", _while)
        monkeypatch.setitem(globals(), "scan", _scan)
        monkeypatch.setitem(globals(), "map_over", _map)

    return replaced


@pytest.mark.parametrize("name", WRITES)
def test_what_a_body_writes_is_there_afterwards(name, tmp_path, in_python):
    module, calls = Writing(), [(P, X), (~P, X * 2), (P, X * 3)]
    methods = [Method(name, args=(P, X)), Method("held", args=())]
    compile_program(module, methods).save(tmp_path / "w.kvc")
    in_python()
    with load(tmp_path / "w.kvc") as program, program.session() as session:
        for p, x in calls:
            given = session.call(name, p, x)
            same(given, getattr(module, name)(p, x))
            held = [torch.from_numpy(each) for each in session.call("held")]
            same(held, [module.c, module.n])


def test_a_body_writes_in_place(tmp_path):
    methods = [Method("what_is_passed", args=(P, X))]
    compile_program(Writing(), methods).save(tmp_path / "w.kvc")
    with load(tmp_path / "w.kvc") as program:
        reports = describe_copies(program._engine.program)
    assert [(r.state, r.verdict, r.bytes_per_call) for r in reports] == [
        ("c", "SAFE", 0)
    ]


def carried(p: Tensor, c: Tensor, x: Tensor) -> Tensor:
    body = lambda i, x: (i + 1, x.add_(1) * 2)  # noqa: E731
    return torch.while_loop(lambda i, x: i < 3, body, (START, x * 1))[1]


def of_the_condition(p: Tensor, c: Tensor, x: Tensor) -> Tensor:
    test = lambda i, x: c.add_(1).sum() < 90  # noqa: E731
    return torch.while_loop(test, lambda i, x: (i + 1, x * 2), (START, x))[1]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (carried, "that the loop carries"),
        (of_the_condition, "the condition of a loop writes"),
    ],
)
def test_other_writes_of_bodies_are_refused(code, told):
    module = Writing()
    module.other = lambda p, x: code(p, module.c, x)
    with pytest.raises(CaptureError, match=told) as caught:
        compile_program(module, [Method("other", args=(P, X))])
    assert "test_body_writes:" in caught.value.facts["place"]


def test_an_attribute_is_not_assigned_in_a_body():
    with pytest.raises(
        CaptureError, match="write into the buffer with copy_"
    ) as caught:
        compile_program(Writing(), [Method("an_attribute", args=(P, X))])
    assert "test_body_writes:" in caught.value.facts["place"]


def given_out(x: Tensor) -> None:
    torch.add(x, 1, out=x)


def given_out_of_a_part(x: Tensor) -> None:
    torch.cumsum(x[0], 0, out=x[0])


def what_a_conversion_gives_itself(x: Tensor) -> None:
    x.type_as(x).add_(1)


def what_a_dropout_gives_itself(x: Tensor) -> None:
    functional.alpha_dropout(x, training=False).add_(1)


WAYS = [given_out, given_out_of_a_part]
WAYS += [what_a_conversion_gives_itself, what_a_dropout_gives_itself]


@pytest.mark.parametrize("write", WAYS)
def test_however_a_body_writes_it_is_as_in_eager(write, tmp_path):
    def yes(x: Tensor) -> Tensor:
        write(x)
        return x * 2

    module = Applied(lambda x: torch.cond(P, yes, lambda x: x + 1, (x,)) + x)
    found = outcome(module, (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_statistics_that_a_body_writes_are_not_lost():
    def yes(x: Tensor) -> Tensor:
        functional.batch_norm(x * 2, x[0], x[1], training=True)
        return x * 2

    module = Applied(lambda x: torch.cond(P, yes, lambda x: x + 1, (x,)) + x)
    with pytest.raises(CompileError, match="training mode"):
        compile_program(module, [Method("forward", args=(X,))])


class Local(nn.Module):
    """A body may change what it has made."""

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        def yes(x: Tensor) -> Tensor:
            y = x.clone()
            y[0].add_(1)
            return y

        return torch.cond(p, yes, lambda x: x + 1, (x,))


def test_a_body_may_write_into_its_own_clone():
    compile_program(Local(), [Method("forward", args=(P, X))])


class Unlike(nn.Module):
    """Branches whose results lie in memory in different orders."""

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda x: x.t().clone(), lambda x: x.t() @ x, (x,))


def test_a_body_may_write_into_what_it_has_converted(tmp_path):
    def yes(x: Tensor) -> Tensor:
        wide = x.double()
        wide += 1
        torch.mul(wide, x, out=wide).add_(2)
        return wide.to(torch.float32)

    module = Applied(lambda x: torch.cond(P, yes, lambda x: x + 1, (x,)) + x)
    found = outcome(module, (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_results_that_lie_in_memory_in_another_order_are_explained():
    with pytest.raises(CaptureError, match=r"memory_format=torch\.contiguous"):
        compile_program(Unlike(), [Method("forward", args=(P, torch.ones(4, 4)))])


class Cached(nn.Module):
    """A cache of four slots."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 4, 2))

    def lose(self, rows):
        torch.ops.kvc.cache_update(self.k, rows)
        return self.k.sum()

    def lose_in_a_branch(self, rows):
        def yes(k, rows):
            torch.ops.kvc.cache_update(k, rows)
            return rows * 2

        def no(k, rows):
            return rows + 1

        return torch.cond(rows.sum() > 0, yes, no, (self.k, rows))

    def lose_of_a_branch(self, rows):
        def yes(k, rows):
            return torch.ops.kvc.cache_update(k, rows), rows * 2

        def no(k, rows):
            return k.clone(), rows + 1

        return torch.cond(rows.sum() > 0, yes, no, (self.k, rows))[1]

    def lose_in_a_loop(self, rows):
        def turn(i, rows):
            def yes(rows):
                torch.ops.kvc.cache_update(self.k, rows)
                return rows * 2

            return i + 1, torch.cond(i > 1, yes, lambda rows: rows + 1, (rows,))

        start = torch.zeros((), dtype=torch.int64), rows
        return while_loop(lambda i, rows: i < 3, turn, start)[1]

    def lose_in_a_scan(self, rows):
        def turn(n, row):
            torch.ops.kvc.cache_update(self.k, row[None, None])
            return n + 1, row * 2

        return scan(turn, rows[0, 0], rows[0])[1]

    def keep_in_a_branch(self, rows):
        def yes(k, rows):
            return torch.ops.kvc.cache_update(k, rows)

        new = torch.cond(rows.sum() > 0, yes, lambda k, _: k.clone(), (self.k, rows))
        self.k.copy_(new)
        return rows.sum()

    def keep(self, rows):
        self.k.copy_(torch.ops.kvc.cache_update(self.k, rows))
        return self.k.sum()


ROWS = torch.ones(1, 1, 2)


def test_an_update_that_is_lost_is_refused_with_its_line():
    with pytest.raises(CaptureError, match=r"write it back: cache.copy_") as caught:
        capture(Cached(), Method("lose", (ROWS,)))
    line = Cached.lose.__code__.co_firstlineno + 1
    assert caught.value.place.endswith(f"test_body_writes:{line}")


@pytest.mark.parametrize("name", [n for n in vars(Cached) if n.startswith("lose_")])
def test_an_update_that_a_body_loses_is_refused_with_the_line_of_the_call(name):
    method = getattr(Cached, name)
    with pytest.raises(CaptureError, match=r"self.cache.copy_\(new\)") as caught:
        capture(Cached(), Method(name, (ROWS,)))
    lines, first = inspect.getsourcelines(method)
    _, line = caught.value.place.rsplit(":", 1)
    assert first < int(line) < first + len(lines)


@pytest.mark.parametrize("name", ["keep", "keep_in_a_branch"])
def test_an_update_that_is_written_back_is_not(name):
    assert capture(Cached(), Method(name, (ROWS,))).method.name == name
