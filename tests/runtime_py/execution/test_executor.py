"""The instruction loop."""

import ctypes
import gc
import weakref
from functools import partial

import pytest

from kvc.runtime import CacheOverflow, KernelFailed
from kvc.runtime.execution.executor import Frame, RunProgress, Unbegun
from kvc.runtime.native import NativeCall, NativePartition, Steps
from kvc.runtime.native.library import find_library
from kvc.schema.errors import KvcError
from kvc.schema.graph import Instruction

ForeignCall = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
HANDLE = ctypes.c_void_p()

PLAIN = Instruction("aten::neg", (), (), "model:7 (layers.0)")
BARE = Instruction("aten::copy", (), (), "")
LAST = Instruction("aten::add.Tensor", (), (), "")


def frame(*steps, places):
    def rebind(*_):
        raise AssertionError("it stays as it is")

    each = tuple(p if isinstance(p, tuple) else (p,) for p in places)
    return Frame("run", (), (), steps, each, (PLAIN, BARE, LAST), 0, (), rebind)


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


@pytest.fixture
def partition():
    """Make partitions that run, or fail with a status, or are not ready."""
    kept = []

    def made(status, make_ready=None):
        function = ForeignCall(lambda handle: status)
        kept.append(function)
        steps = Steps(find_library(), 1)
        address = ctypes.cast(function, ctypes.c_void_p).value
        steps.add_call(address, ctypes.addressof(HANDLE))
        return NativePartition(steps, told, make_ready)

    def told(failure):
        raise RuntimeError(f"status {failure.facts[0]}")

    return made


def test_a_failure_of_joined_partitions_is_placed_at_the_instruction_of_its_partition(
    partition,
):
    joined, progress = NativeCall([partition(0), partition(5)]), RunProgress()
    with pytest.raises(KernelFailed) as caught:
        frame((list, ()), (joined, ()), places=(0, (0, 1))).run(progress)
    assert str(caught.value) == "method run, instruction 1, aten::copy: status 5"
    assert progress.last(caught.value) == 1


def test_a_partition_that_is_not_ready_is_named_and_none_has_begun(partition):
    joined, progress = NativeCall([partition(0), partition(0, unready)]), RunProgress()
    with pytest.raises(KernelFailed) as caught:
        frame((list, ()), (joined, ()), places=(0, (1, 2))).run(progress)
    assert str(caught.value) == "method run, instruction 2, aten::add.Tensor: no"
    assert progress.last(caught.value) == 0


def unready():
    raise RuntimeError("no")


def failing(kind, **facts):
    raise kind(**facts)


def unbegun(kind, **facts):
    try:
        failing(kind, **facts)
    except (MemoryError, KvcError) as error:
        raise Unbegun from error


@pytest.mark.parametrize("fails", [failing, unbegun])
@pytest.mark.parametrize("kind", [MemoryError, CacheOverflow])
def test_an_error_goes_when_nobody_holds_it(fails, kind):
    facts = {"row": 0, "start": 1, "count": 2, "capacity": 2}
    step = partial(fails, kind, **(facts if kind is CacheOverflow else {}))
    gc.disable()  # which would find a circle, some time
    try:
        try:
            frame((step, ()), places=(0,)).run()
        except KvcError as caught:
            gone = weakref.ref(caught)
        assert gone() is None
    finally:
        gc.enable()


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
