"""Work that torch would repeat while it traces is done once, with the same result."""

import gc
import threading

import pytest
import torch
import torch.fx._lazy_graph_module as lazy
from torch import Tensor, nn
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.trace.sizes_kept import work_once
from kvc.compiler.trace.terminal import quiet


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(1))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            heads = layer(x).view(*x.shape[:2], 2, 4).transpose(1, 2)
            x = heads.transpose(1, 2).flatten(2) + x.shape[1] * 3
        return x


def traced() -> list[tuple[str, str]]:
    """Return each step of a program, and what it makes."""
    seq = {1: torch.export.Dim("seq", max=64)}
    example = (torch.zeros(2, 5, 8),)
    with quiet():
        exported = torch.export.export(
            Layers(), example, dynamic_shapes=(seq,), strict=False
        ).run_decompositions()
    nodes = exported.graph.nodes
    return [(str(n.target), str(n.meta.get("val"))) for n in nodes]


def size(env: ShapeEnv, number: int) -> torch.SymInt:
    """Return a dynamic size whose example is a number."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(f"size_{number}")
    symbol = env.create_symbol(number, source, dynamic_dim=DimDynamic.DYNAMIC)
    made = env.create_symintnode(symbol, hint=number, source=source)
    assert isinstance(made, torch.SymInt)
    return made


def test_what_is_traced_stays_the_same() -> None:
    torch.manual_seed(0)
    before = traced()
    with work_once():
        assert traced() == before


def test_a_product_of_sizes_is_computed_once() -> None:
    env = ShapeEnv()
    one, other = size(env, 5), size(env, 7)
    with work_once():
        product = one * other
        again = size_of_same(one) * other
    assert product.node is again.node
    assert (one * other).node is not product.node


def size_of_same(number: torch.SymInt) -> torch.SymInt:
    """Return another object for the same size."""
    node = number.node
    return torch.SymInt(SymNode(node.expr, node.shape_env, int, node.hint))


def test_what_torch_learns_of_a_size_changes_results() -> None:
    env = ShapeEnv()
    one, other = size(env, 5), size(env, 7)
    with work_once():
        before = (one + other).node.expr
        assert one == 5  # from here on it is a number
        after = (one + other).node
    assert before != after.expr
    assert after.expr == other.node.expr + 5


def test_different_operations_and_orders_are_told_apart() -> None:
    env = ShapeEnv()
    one, other = size(env, 5), size(env, 7)
    with work_once():
        hints = [x.node.hint for x in (one - other, other - one, one * other)]
        assert hints == [-2, 2, 35]
        assert [(one < other).node.hint, (other < one).node.hint] == [True, False]


def test_numbers_are_one_node_each_and_not_mixed_up() -> None:
    env = ShapeEnv()
    one = size(env, 5)
    with work_once():
        assert one.node.wrap_int(3) is one.node.wrap_int(3)
        assert one.node.wrap_int(3).maybe_as_int() == 3
        assert one.node.wrap_int(4).maybe_as_int() == 4
        assert one.node.maybe_as_int() is None


def test_torch_is_left_as_it_was() -> None:
    methods, threshold = dict(vars(SymNode)), gc.get_threshold()
    thunkify = proxy_tensor.thunkify
    with work_once():
        assert vars(SymNode)["_mul"] is not methods["_mul"]
        assert gc.get_threshold() != threshold
    assert dict(vars(SymNode)) == methods
    assert gc.get_threshold() == threshold
    assert proxy_tensor.thunkify is thunkify


@pytest.mark.parametrize("threshold", [0, 10_000_000])
def test_collections_of_garbage_are_not_made_more_frequent(threshold: int) -> None:
    before = gc.get_threshold()
    gc.set_threshold(threshold, *before[1:])
    try:
        with work_once():
            assert gc.get_threshold()[0] == threshold
        assert gc.get_threshold()[0] == threshold
    finally:
        gc.set_threshold(*before)


def test_torch_is_left_as_it_was_after_an_error() -> None:
    methods, flag = dict(vars(SymNode)), lazy._use_lazy_graph_module_flag
    with pytest.raises(KeyboardInterrupt), work_once():
        raise KeyboardInterrupt
    assert dict(vars(SymNode)) == methods
    assert lazy._use_lazy_graph_module_flag is flag


def test_torch_is_left_as_it_was_when_nested() -> None:
    methods = dict(vars(SymNode))
    with work_once():
        within = dict(vars(SymNode))
        with work_once():
            pass
        assert dict(vars(SymNode)) == within
    assert dict(vars(SymNode)) == methods


def test_models_that_threads_compile_are_the_same_as_alone() -> None:
    def compiled(width: int) -> object:
        torch.manual_seed(width)
        model, seq = (
            nn.Sequential(nn.Linear(8, width), nn.Linear(width, 8)),
            Dim("seq", 1, 9),
        )
        example = torch.zeros(2, 3, 8)
        method = Method("forward", (example,), dynamic={"input": {1: seq}})
        bundle = compile_program(model, [method])
        return bundle.program.methods[0].graph.instructions

    alone = [compiled(width) for width in (4, 5)]
    found = dict[int, object]()
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: compiled(n)}))
        for n in (4, 5, 4, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[4], found[5]] == alone
