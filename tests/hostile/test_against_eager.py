"""A small share of the random programs, the same each day, and their judge itself."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("expecttest", reason="torch's samples of operators need expecttest")

import torch
from eager_parity import run_both
from operator_programs import Code, Constant, OperatorProgram, Ref, Step, function_of
from operator_shrinking import as_test, shrunk
from operator_verdicts import Judge, Verdict
from other_roundings import undecided
from random_operators import draw, samples_of
from step_checks import depends_on_memory, keeps_shapes, made_of
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_leaves

from kvc.compiler import Method
from kvc.runtime.kernels.table import load_kernels

# Of each kind of kernel some.
NAMES = (
    "add", "mul", "exp", "softmax", "sort", "cumsum", "index_select", "where", "clamp",
    "transpose", "matmul", "sum", "gather", "cat", "roll", "nn.functional.silu",
    "masked_fill", "amax", "narrow", "nn.functional.linear", "copysign", "scatter",
)  # fmt: skip
GOOD = {"same bits", "equal", "undecided"}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def judge(tmp_path):
    return Judge(tmp_path / "programs.kvc")


def _program(name, *leaves, calls):
    """A program of one operator, whose result it returns."""
    refs = [each if isinstance(each, Ref) else Constant(each) for each in leaves]
    _, spec = tree_flatten((0, (0,) * (len(leaves) - 1), {}))
    step = Step(name, False, tuple(refs), spec, 1)
    return OperatorProgram(Code(len(calls[0]), 0, (step,), (0,)), calls)


@pytest.mark.parametrize(("length", "count"), [(1, 30), (8, 3)])
def test_random_programs_are_as_in_eager(length, count, judge):
    programs = [draw(0, number, length, NAMES) for number in range(count)]

    found = judge.verdicts(programs)

    assert [one for one in found if one.kind not in GOOD | {"refused"}] == []
    assert any(one.kind in GOOD for one in found)
    assert all(len(one.code.steps) == length for one in programs)


def test_equal_numbers_are_equal_programs():
    samples_of.cache_clear()
    first = draw(0, 7, 8, NAMES)
    samples_of.cache_clear()
    again = draw(0, 7, 8, NAMES)
    assert again.code == first.code
    assert str(again.calls) == str(first.calls)
    assert draw(1, 7, 8, NAMES).code != first.code


def test_special_values_shapes_and_buffers_are_all_drawn():
    programs = [draw(0, number, 8, NAMES) for number in range(40)]
    tensors = [each for one in programs for call in one.calls for each in call]
    floats = [each.double() for each in tensors if each.is_floating_point()]
    assert any(each.isnan().any() for each in floats)
    assert any(each.isinf().any() for each in floats)
    assert any(((each == 0) & each.signbit()).any() for each in floats)
    assert any(((each != 0) & (each.abs() < 1e-38)).any() for each in floats)
    assert any(each.numel() == 0 for each in tensors)
    assert not all(each.is_contiguous() for each in tensors)
    assert any(one.held for one in programs)
    assert any(one.dynamic for one in programs)
    assert any(step.in_place for one in programs for step in one.code.steps)


@pytest.fixture
def broken_exp(monkeypatch):
    """A kernel that is wrong where a number is greater than 2."""

    def exp(out, x):
        return torch.exp(torch.clamp(x, max=2), out=out)

    broken = {**load_kernels(), "aten::exp": exp}
    monkeypatch.setattr("kvc.runtime.execution.frames.load_kernels", lambda: broken)


def test_a_wrong_kernel_is_found_beside_others_and_made_small(broken_exp, tmp_path):
    judge = Judge(tmp_path / "programs.kvc", ["fp32"])
    x = torch.tensor([[1.0, 3.0], [math.nan, 0.0]])
    y = _program("exp", Ref("inputs", 0), calls=((x,),))
    add = _program("add", Ref("inputs", 0), Ref("inputs", 0), calls=((x,),))

    found = judge.verdicts([add, y, add])

    assert [one.kind for one in found] == ["same bits", "wrong", "same bits"]
    assert "result 0 at [0, 1] is 7.38" in found[1].reason
    less = shrunk(y, found[1], judge)
    assert [step.name for step in less.code.steps] == ["exp"]
    names = {
        "torch": torch, "nn": nn, "math": math, "Method": Method, "run_both": run_both,
        "function_of": function_of, "tensors": tree_leaves,
    }  # fmt: skip
    exec(as_test(less, "fp32"), names)  # its own text
    with pytest.raises(AssertionError, match="Mismatched elements"):
        names["test_it_is_as_in_eager"](tmp_path)


def test_a_program_shrinks_to_the_step_that_fails(broken_exp, tmp_path):
    judge = Judge(tmp_path / "programs.kvc", ["fp32"])
    of_input, of_exp = Ref("inputs", 0), Ref("made", 1)
    names = (("neg", of_input), ("exp", of_input), ("abs", of_exp), ("neg", of_exp))
    parts = [_program(name, ref, calls=((),)) for name, ref in names]
    steps = tuple(step for one in parts for step in one.code.steps)
    calls = ((torch.tensor([3.0, 0.0]),),) * 2
    whole = OperatorProgram(Code(1, 0, steps, (0, 3)), calls)
    (verdict,) = judge.verdicts([whole])
    assert verdict.kind == "wrong"

    less = shrunk(whole, verdict, judge)

    assert [step.name for step in less.code.steps] == ["exp"]
    assert len(less.calls) == 1


def test_a_crash_of_the_compiler_is_an_error_of_its_program(judge, monkeypatch):
    def explode(*_):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("kvc.compiler.pipeline.import_program", explode)
    one = _program("exp", Ref("inputs", 0), calls=((torch.ones(2),),))
    assert judge.verdicts([one]) == [
        Verdict("error", "ZeroDivisionError: a defect", "fp32")
    ]


def test_a_program_that_cannot_be_traced_is_found_without_the_others(judge):
    one_hot = "nn.functional.one_hot"  # asks for the greatest number
    good = _program("exp", Ref("inputs", 0), calls=((torch.ones(2, 2),),))
    bad = _program(one_hot, Ref("inputs", 0), calls=((torch.tensor([1, 0]),),))
    tried = []
    parts = judge._tried

    def noted(some):
        tried.append(len(some))
        return parts(some)

    judge._tried = noted
    found = judge.verdicts([good] * 5 + [bad] + [good] * 2)

    assert [one.kind for one in found] == [
        "refused" if place == 5 else "same bits" for place in range(8)
    ]
    assert tried == [8, 5, 1, 2]


def test_what_has_no_one_answer_is_not_drawn():
    names = ("nn.functional.dropout", "add")
    programs = [draw(0, number, 1, names) for number in range(20)]
    assert {step.name for one in programs for step in one.code.steps} >= {"add"}
    for program in programs:
        state = torch.get_rng_state()
        program.expected()
        assert torch.equal(torch.get_rng_state(), state)


def test_what_hides_that_it_draws_random_numbers_is_not_drawn():
    names = ("normal.number_mean", "add")
    programs = [draw(0, number, 1, names) for number in range(20)]
    assert {step.name for one in programs for step in one.code.steps} == {"add"}


def test_inputs_and_buffers_keep_their_shapes():
    names = ("t", "unsqueeze", "squeeze", "resize_")
    written = 0
    for number in range(40):
        program = draw(0, number, 8, names)
        written += any(step.in_place for step in program.code.steps)
        held = [each.clone() for each in program.held]
        for call in program.calls:
            inputs = [each.clone() for each in call]
            program.code.made_of(inputs, held)
            pairs = zip((*inputs, *held), (*call, *program.held), strict=True)
            assert all(now.shape == before.shape for now, before in pairs)
    assert written > 5


def test_what_is_written_in_place_keeps_its_number_of_elements():
    x = torch.ones(4)
    for shape, kept in (((2, 2), True), ((2,), False)):
        one = _program("resize_", Ref("inputs", 0, (2, 2)), shape, calls=((x,),) * 2)
        steps = (replace(one.code.steps[0], in_place=True),)
        written = replace(one, code=replace(one.code, steps=steps))
        assert keeps_shapes(written) is kept


def test_what_depends_on_where_inputs_of_the_second_call_lie_is_not_drawn():
    x = torch.arange(12.0).reshape(3, 4)
    names = ("add", "neg")
    leaves = ((Ref("inputs", 0, (12,)), Ref("inputs", 1)), (Ref("inputs", 0),))
    steps = [
        Step(
            name,
            name == "add",
            refs,
            tree_flatten((0, (0,) * (len(refs) - 1), {}))[1],
            1,
        )
        for name, refs in zip(names, leaves, strict=True)
    ]
    whole, ones = Code(2, 0, tuple(steps), (0, 1)), torch.ones(12)
    alone = Code(2, 0, tuple(steps[:1]), (0,))  # only the input tells
    lies = [(x, x), (x, x.mT.contiguous().mT)]  # a view of x in place, or a copy
    found = []
    for code, (first, second) in itertools.product((whole, alone), lies):
        program = OperatorProgram(code, ((first, ones), (second, ones)))
        found.append(depends_on_memory(program, made_of(program), spread=True))
    assert found == [False, True] * 2


def test_steps_that_write_what_they_have_yet_to_read_differ_from_steps_apart():
    x = torch.arange(6.0)
    whole, part = Ref("inputs", 0, (5,)), Ref("inputs", 0, (5,))
    _, spec = tree_flatten((0, (0,), {}))
    step = Step("masked_scatter", True, (whole, Ref("inputs", 1), part), spec, 1)
    _, step_spec = tree_flatten((0, (0, 0), {}))
    code = Code(2, 0, (replace(step, spec=step_spec),), (0,))
    mask = torch.tensor([False, True, True, True, True])
    made = code.made_of((x.clone(), mask), ())
    apart = code.made_of((x.clone(), mask), (), apart=True)
    assert not torch.equal(made[0], apart[0])


def test_fractions_that_gelu_makes_of_infinity_decide_nothing(tmp_path, monkeypatch):
    def gelu(out, x, approximate):
        out.copy_(torch.where(x == math.inf, x, torch.nn.functional.gelu(x)))

    broken = {**load_kernels(), "aten::gelu": gelu}
    monkeypatch.setattr("kvc.runtime.execution.frames.load_kernels", lambda: broken)
    judge = Judge(tmp_path / "programs.kvc", ["fp32"])
    x = torch.tensor([math.inf, 1.0, -1.0, 2.0])
    one = _program("nn.functional.gelu", Ref("inputs", 0), calls=((x,),))
    assert judge.verdicts([one])[0].kind in ("undecided", "same bits", "equal")


def _free_of(program, flushed=False):
    """What of the first call's first result decides nothing."""
    known = [each for call in program.expected() for each in call]
    return undecided(program, known, flushed)[0]


def test_the_sign_of_a_sum_that_is_zero_decides_nothing():
    x = torch.tensor([[-0.0, -0.0], [1.0, 2.0]])
    _, spec = tree_flatten((0, (0,), {}))
    sums = Step("sum", False, (Ref("inputs", 0), Constant(1)), spec, 1)
    _, spec = tree_flatten((0, (), {}))
    over = Step("reciprocal", False, (Ref("made", 0),), spec, 1)
    program = OperatorProgram(Code(1, 0, (sums, over), (1,)), ((x,),) * 2)
    assert _free_of(program).tolist() == [True, False]


NAN, INF = math.nan, math.inf
OPEN = {
    "a Fourier transform of NaN": (
        lambda x: torch.fft.rfft(x).imag,
        torch.tensor([[NAN, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]),
        [[True] * 3, [False] * 3],
    ),
    "infinities in another order": (
        lambda x: functional.bilinear(x, x, torch.ones(1, 2, 2)),
        torch.tensor([[1.0, -INF], [1.0, 2.0]]), [[True], [False]],
    ),
    "infinite weights beside zeros": (
        lambda x: functional.conv1d(torch.ones(1, 1, 3), x.reshape(1, 1, 3), padding=1),
        torch.tensor([1.0, INF, 2.0]), [[[True] * 3]],
    ),
    "large integers between two": (
        lambda x: torch.linspace(x[0], x[1], 3, dtype=torch.int64),
        torch.tensor([0, 2**62]), [False, True, True],
    ),
    "powers that do not fit": (
        lambda x: torch.logspace(x[0], x[1], 3, dtype=torch.int64),
        torch.tensor([0, 30]), [False, False, True],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_what_torch_leaves_open_decides_nothing(name):
    function, x, free = OPEN[name]
    assert free_of(function, x).tolist() == free


def test_a_sinh_that_is_nearly_infinite_decides_nothing():
    x = torch.tensor([89.0, 1.0, 90.0]).repeat_interleave(64)
    nearly = (x == 89) & torch.sinh(x).isinf()  # on some processors
    assert torch.equal(free_of(torch.sinh, x), nearly)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "function", [functional.gelu, partial(functional.log_softmax, dim=-1)]
)
def test_what_is_rounded_otherwise_keeps_its_dtype(function, dtype):
    x = torch.eye(4, dtype=dtype)
    # A product takes one dtype; a program that fails decides nothing at all.
    assert not free_of(lambda x: (function(x) @ x).sign(), x).any()


def free_of(function, *inputs):
    """Return which elements of a function's result decide nothing."""

    class Program:
        def expected(self):
            return [(function(*inputs),)]

    (known,) = Program().expected()
    (free,) = undecided(Program(), known, flushed=False)
    return free


def test_attention_to_what_is_masked_decides_nothing_where_it_is_nan():
    q, k, v = torch.ones(3, 2, 3, 4).unbind()
    attend = partial(functional.scaled_dot_product_attention, is_causal=True)
    assert not free_of(attend, q, k, v).any()
    v = v.clone()
    v[0, 2, 1] = NAN  # seen by the last row alone, and of one head
    free = torch.zeros(2, 3, 4, dtype=torch.bool)
    free[0, :, 1] = True
    assert torch.equal(free_of(attend, q, k, v), free)


def test_the_mean_beside_a_variance_of_infinities_decides_nothing():
    x = torch.tensor([[1.0, -math.inf, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    one = _program(
        "native_layer_norm", Ref("inputs", 0), (4,), None, None, 0.1, calls=((x,),) * 2
    )
    program = replace(
        one,
        code=replace(
            one.code, steps=(replace(one.code.steps[0], count=3),), results=(1,)
        ),
    )
    assert _free_of(program).flatten().tolist() == [True, False]


def test_infinities_that_are_interpolated_decide_nothing_where_a_library_loses_them():
    x = torch.ones(1, 1, 4, 4)
    x[..., 0, 0] = math.inf
    program = _program(
        "nn.functional.upsample_bilinear", Ref("inputs", 0), (3, 3), calls=((x,),) * 2
    )
    assert not _free_of(program).any()
    free = _free_of(program, flushed=True)
    assert free[0, 0, 0, 0]
    assert not free[0, 0, 1:, 1:].any()


def test_which_of_equal_values_is_chosen_decides_nothing(tmp_path, monkeypatch):
    def last(out, x, count, axis, largest, by_size):
        values, places = torch.topk(x.flip(axis), count, axis, largest, by_size)
        out[0].copy_(values), out[1].copy_(x.shape[axis] - 1 - places)

    broken = {**load_kernels(), "aten::topk": last}
    monkeypatch.setattr("kvc.runtime.execution.frames.load_kernels", lambda: broken)
    judge = Judge(tmp_path / "programs.kvc", ["fp32"])
    ties = torch.tensor([3.0, 1.0, 3.0, 2.0])
    apart = torch.tensor([3.0, 1.0, 4.0, 2.0])
    step = ("topk", Ref("inputs", 0), 1)
    programs = [_program(*step, calls=((x,),)) for x in (ties, apart)]
    indices = [
        OperatorProgram(Code(1, 0, (Step(*_parts(one), 2),), (1,)), one.calls)
        for one in programs
    ]
    assert [one.kind for one in judge.verdicts(indices)] == ["undecided", "same bits"]


def _parts(program):
    (step,) = program.code.steps
    return step.name, step.in_place, step.leaves, step.spec
