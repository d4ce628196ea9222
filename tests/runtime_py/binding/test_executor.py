"""The instruction loop."""

import ctypes

import pytest

from kvc.runtime import CacheOverflow, KernelFailed
from kvc.runtime.binding.executor import Frame
from kvc.runtime.native import NativeCall, NativePart, Steps, find_library
from kvc.schema.model import Instruction

ForeignCall = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
HANDLE = ctypes.c_void_p()

PLAIN = Instruction("aten::neg", (), (), "model:7 (layers.0)")
BARE = Instruction("aten::copy", (), (), "")


def frame(*steps, places):
    def rebind(*_):
        raise AssertionError("it stays as it is")

    each = tuple(p if isinstance(p, tuple) else (p,) for p in places)
    return Frame("run", (), (), steps, each, (PLAIN, BARE), 0, (), rebind)


def raising(error):
    raise error


def test_steps_run_in_order_with_their_arguments():
    seen = []
    frame((seen.append, (1,)), (seen.append, (2,)), places=(0, 1)).run()
    assert seen == [1, 2]


def test_a_failure_is_placed_at_its_instruction_not_its_step():
    steps = ((list, ()), (list, ()), (raising, (RuntimeError("no"),)))
    with pytest.raises(KernelFailed) as caught:
        frame(*steps, places=(0, 1, 1)).run()
    assert str(caught.value) == "method run, instruction 1, aten::copy: no"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failure_of_joined_parts_is_placed_at_the_instruction_of_its_part():
    def told(failure):
        raise RuntimeError(f"status {failure.facts[0]}")

    def part(status):
        function = ForeignCall(lambda handle: status)
        steps = Steps(find_library(), 1)
        address = ctypes.cast(function, ctypes.c_void_p).value
        steps.add_call(address, ctypes.addressof(HANDLE))
        kept.append(function)
        return NativePart(steps, told)

    kept = []
    joined = NativeCall([part(0), part(5)])
    with pytest.raises(KernelFailed) as caught:
        frame((list, ()), (joined, ()), places=(0, (0, 1))).run()
    assert str(caught.value) == "method run, instruction 1, aten::copy: status 5"


def test_the_message_has_the_source_line():
    with pytest.raises(KernelFailed, match=r"aten::neg at model:7 \(layers\.0\): no"):
        frame((raising, (RuntimeError("no"),)), places=(0,)).run()


def test_an_error_without_text_shows_its_kind():
    with pytest.raises(KernelFailed, match="MemoryError"):
        frame((raising, (MemoryError(),)), places=(0,)).run()


def test_errors_of_kvc_pass_through():
    overflow = CacheOverflow(row=0, start=1, count=2, capacity=2)
    with pytest.raises(CacheOverflow) as caught:
        frame((raising, (overflow,)), places=(0,)).run()
    assert caught.value is overflow


def test_an_interrupt_is_no_failure_of_the_kernel():
    with pytest.raises(KeyboardInterrupt):
        frame((raising, (KeyboardInterrupt(),)), places=(0,)).run()
