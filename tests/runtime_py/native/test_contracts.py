"""Steps that no kernel may run are refused before they run, for the rule they break."""

import re
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from broken_contracts import BROKEN, Call, Change, f, right_calls
from checked_steps import breach_of, operands_of, regions_of

from kvc.runtime.native import Steps
from kvc.runtime.native.checks import Breach, find_breach
from kvc.runtime.native.library import find_library

ROOT = Path(__file__).parents[3]
RIGHT = right_calls()


def steps_of(call: Call) -> Steps:
    steps = Steps(find_library(), 1)
    steps.add(call.kernel, call.tensors, call.integers, call.numbers)
    return steps


@pytest.mark.parametrize("name", RIGHT)
def test_calls_that_are_right_are_accepted(name: str):
    assert breach_of(steps_of(RIGHT[name])) is None


@pytest.mark.parametrize(("rule", "name", "change"), BROKEN)
def test_what_a_contract_forbids_is_refused(rule: str, name: str, change: Change):
    call = deepcopy(RIGHT[name])
    change(call)
    found = breach_of(steps_of(call))
    assert found is not None
    assert (found.rule, found.step) == (rule, 0)


def negated() -> tuple[Steps, np.ndarray]:
    """Return a step that negates [2, 3], and its operands, to be changed."""
    steps = steps_of(Call("aten::neg", [f(2, 3), f(2, 3)]))
    return steps, operands_of(steps)


def set_dims(operand: np.void, dims: tuple[int, ...], strides: tuple[int, ...]) -> None:
    operand["rank"] = len(dims)
    operand["dims"][:], operand["strides"][:] = 0, 0
    operand["dims"][: len(dims)], operand["strides"][: len(dims)] = dims, strides


ALONE = [
    ("an unknown dtype", lambda x: x.__setitem__("dtype", 10)),
    ("an unknown dtype", lambda x: x.__setitem__("dtype", -1)),
    ("rank of a tensor", lambda x: x.__setitem__("rank", 9)),
    ("rank of a tensor", lambda x: x.__setitem__("rank", -1)),
    ("a dim out of range", lambda x: set_dims(x, (2, -3), (3, 1))),
    ("a dim out of range", lambda x: set_dims(x, (0, 1 << 37), (0, 0))),
    ("a stride out of range", lambda x: set_dims(x, (2, 3), (-3, 1))),
    ("a stride out of range", lambda x: set_dims(x, (2, 3), (1 << 62, 1))),
    ("dims after the rank", lambda x: x["dims"].__setitem__(2, 1)),
    ("dims after the rank", lambda x: x["strides"].__setitem__(7, 1)),
    ("too many elements", lambda x: set_dims(x, (1 << 20, 1 << 20), (0, 0))),
    ("an operand that is left out has dims", lambda x: x.__setitem__("data", 0)),
]


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize(("rule", "change"), ALONE)
def test_what_is_no_operand_is_refused(rule: str, change, operand: int):
    steps, operands = negated()
    regions = regions_of(steps)
    change(operands[operand])
    found = find_breach(steps, regions)
    assert found is not None
    assert (found.rule, found.operand) == (rule, operand)


@pytest.mark.parametrize("by", [4, -4, 1 << 40])
def test_an_operand_outside_of_its_region_is_refused(by: int):
    memory = np.zeros(6, np.float32), np.zeros(6, np.float32)
    steps = steps_of(Call("aten::neg", [each.reshape(2, 3) for each in memory]))
    operands = operands_of(steps)
    operands["data"][1] = int(operands["data"][1]) + by
    found = find_breach(steps, memory)
    assert found == Breach(0, 1, "an operand lies outside of all regions", (0, 0))
    assert find_breach(steps, []).rule == "an operand lies outside of all regions"


def test_an_operand_that_is_not_aligned_is_refused():
    memory = np.zeros(16, np.float32)
    steps = steps_of(Call("aten::neg", [memory[:3], memory[8:11]]))
    operands_of(steps)["data"][1] += np.uint64(2)
    assert find_breach(steps, [memory]).rule == "an operand is not aligned"


def test_the_end_of_an_operand_is_told_without_overflow():
    steps, operands = negated()
    regions = regions_of(steps)
    set_dims(operands[1], (2, 3), (1 << 58, 1 << 57))
    assert find_breach(steps, regions).rule == "an operand too large"
    set_dims(operands[1], (2, 3), (1 << 50, 1))
    assert find_breach(steps, regions).rule == "an operand lies outside of all regions"


def test_results_lie_where_may_be_written():
    out, x = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    out.flags.writeable = False
    steps = steps_of(Call("aten::neg", [out, x]))
    found = find_breach(steps, [out, x])
    assert found == Breach(0, 0, "a result where nothing may be written", (0, 0))
    turned = steps_of(Call("aten::neg", [x, out]))
    assert find_breach(turned, [out, x]) is None


def test_an_operand_without_elements_needs_no_memory():
    steps = steps_of(Call("aten::neg", [f(2, 0), f(2, 0)]))
    operands_of(steps)["data"][:] = 12345
    assert find_breach(steps, []) is None


def test_a_kernel_that_there_is_not_is_refused():
    for number in (-1, 1 << 20):
        steps, _ = negated()
        steps.settle()["kernel"][0] = number
        assert breach_of(steps).rule == "an unknown kernel"
    steps, _ = negated()
    regions = regions_of(steps)
    steps.settle()["tensor_count"][0] = -1
    assert find_breach(steps, regions).rule == "a negative number of operands"


def test_no_file_may_call_other_libraries():
    for kernel in ("call", "ask"):
        found = breach_of(steps_of(Call(kernel, [], [0, 0])))
        assert found.rule == "a kernel that no file may ask for"


def test_the_first_step_that_breaks_a_rule_is_told():
    steps = Steps(find_library(), 1)
    for shape in ((2, 3), (2, 3), (3,), (4,)):
        steps.add("aten::neg", [f(2, 3), f(*shape)], [], [])
    assert breach_of(steps) == Breach(2, -1, "operands differ in shape", (1, 0))


def test_a_quotient_may_take_the_place_of_its_divisor():
    x = np.ones(4, np.int64)
    steps = steps_of(Call("aten::floor_divide", [x, np.ones(4, np.int64), x]))
    assert breach_of(steps) is None


def test_every_rule_is_broken_by_a_test():
    told = {rule for rule, _, _ in BROKEN} | {rule for rule, _ in ALONE}
    here = (ROOT / "tests/runtime_py/native/test_contracts.py").read_text()
    found = set()
    for path in sorted((ROOT / "runtime_py/native").glob("*.*")):
        if path.suffix in {".cc", ".h"}:
            text = path.read_text()
            call = r'(?:holds\([^"]*|tell\(|breach->rule = )"([^"]+)"'
            found |= set(re.findall(call, text))
    assert len(found) > 80
    assert {
        rule for rule in found if rule not in told and f'"{rule}"' not in here
    } == set()
