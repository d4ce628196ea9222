import pytest
import torch

from kvc.compiler import Dim, Method
from kvc.compiler.trace import examples
from kvc.schema.errors import CaptureError

SEQ = Dim("seq", 1, 8)
ONE, FIVE = torch.tensor([[7.0]]), torch.arange(5.0)[None]


class Takes(torch.nn.Module):
    def m(self, a, b, c, d=1):
        pass


def lengthened(arguments, **dynamic):
    return examples.lengthen(arguments, Method("m", dynamic=dynamic))


def refusal(arguments, **dynamic):
    with pytest.raises(CaptureError) as caught:
        examples.check_dynamic(arguments, Method("m", dynamic=dynamic))
    return caught.value.facts["reason"]


def test_an_example_of_length_one_is_repeated():
    assert torch.equal(lengthened({"x": ONE}, x={1: SEQ})["x"], ONE.repeat(1, 2))


def test_an_example_of_another_length_keeps_it():
    assert torch.equal(lengthened({"x": FIVE}, x={1: SEQ})["x"], FIVE)


def test_a_short_example_takes_the_length_of_another_of_its_dim():
    both = lengthened({"x": ONE, "y": FIVE}, x={1: SEQ}, y={1: SEQ})
    assert both["x"].shape == (1, 5)


def test_an_example_is_lengthened_within_its_bounds():
    assert lengthened({"x": ONE}, x={1: Dim("s", 4, 8)})["x"].shape == (1, 4)
    assert lengthened({"x": ONE}, x={1: Dim("s", 1, 1)})["x"].shape == (1, 1)


def test_examples_within_containers_are_lengthened():
    got = lengthened({"p": [{"k": ONE}]}, **{"p[0].k": {0: SEQ}})
    assert got["p"][0]["k"].shape == (2, 1)


def test_dynamic_examples_are_copies_so_that_two_arguments_are_two_sizes():
    got = lengthened({"x": FIVE, "y": FIVE}, x={1: SEQ}, y={1: Dim("other", 1, 8)})
    assert got["x"] is not got["y"]


def test_an_example_of_length_nought_is_made_longer():
    got = lengthened({"x": FIVE[:, :0]}, x={1: Dim("past", 0, 8)})
    assert torch.equal(got["x"], torch.zeros(1, 2))


def test_an_example_of_length_nought_takes_the_length_of_another_of_its_dim():
    dim = Dim("past", 0, 8)
    both = {"x": FIVE[:, :0], "y": FIVE}
    assert lengthened(both, x={1: dim}, y={1: dim})["x"].shape == (1, 5)
    examples.check_dynamic(both, Method("m", dynamic={"x": {1: dim}, "y": {1: dim}}))


def test_examples_have_memory_of_their_own():
    got = lengthened({"x": FIVE, "y": [FIVE[:, :2]]})
    assert torch.equal(got["x"], FIVE)
    memories = {t.untyped_storage()._cdata for t in (FIVE, got["x"], got["y"][0])}
    assert len(memories) == 3


def test_an_example_without_memory_gets_some():
    shape = torch.empty(1, 7, device="meta")
    got = lengthened({"x": shape}, x={0: Dim("batch", 1, 4)})
    assert (got["x"].device.type, got["x"].shape) == ("cpu", (2, 7))


def test_arguments_are_in_the_order_of_the_parameters():
    method = Method("m", args=(1,), kwargs={"c": 3, "b": 2})
    named = examples.named_arguments(Takes(), method)
    assert list(named) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1, 2, 3, 4, 5), {}, "args has 5 examples; its parameters are a, b, c, d"),
        ((1, 2, 3), {"a": 1}, "'a' is given in args and in kwargs"),
        ((1, 2, 3), {"e": 1}, "kwargs has 'e'; its parameters are a, b, c, d"),
        ((1,), {"c": 3}, "no example for its parameter 'b'; give one in args or"),
    ],
)
def test_examples_must_fit_the_parameters(args, kwargs, text):
    with pytest.raises(CaptureError) as caught:
        examples.named_arguments(Takes(), Method("m", args, kwargs))
    assert text in str(caught.value)


def test_an_unknown_path_is_refused_with_those_that_exist():
    reason = refusal({"x": ONE, "past": (FIVE,)}, y={0: SEQ})
    assert reason == "dynamic names 'y'; its tensors are x, past[0]"


def test_an_axis_out_of_range_is_refused():
    assert refusal({"x": ONE}, x={2: SEQ}) == "dynamic axis 2 of 'x', which has 2 dims"
    assert "dynamic axis -1" in refusal({"x": ONE}, x={-1: SEQ})


@pytest.mark.parametrize("dim", [Dim("s", 6, 8), Dim("s", 1, 4), Dim("s", 4, 4)])
def test_an_example_outside_its_bounds_is_refused(dim):
    assert "size 5 along axis 1, but Dim s is" in refusal({"x": FIVE}, x={1: dim})


def test_an_example_of_length_nought_is_refused():
    assert "size 0 along axis 1" in refusal({"x": FIVE[:, :0]}, x={1: SEQ})


def test_one_dim_with_two_lengths_is_refused():
    reason = refusal({"x": FIVE, "y": FIVE[:, :3]}, x={1: SEQ}, y={1: SEQ})
    assert reason == "the examples give Dim seq the sizes 5 and 3"


def test_one_name_with_two_bounds_is_refused():
    reason = refusal({"x": ONE, "y": ONE}, x={1: SEQ}, y={1: Dim("seq", 1, 4)})
    assert reason == "Dim seq is declared 1..8 and 1..4"


def test_a_dim_of_one_size_is_no_symbol_for_torch():
    method = Method("m", dynamic={"x": {1: Dim("s", 5, 5)}})
    assert examples.torch_dynamic_shapes({"x": FIVE}, method) == {"x": {}}


def test_constants_have_no_shape_for_torch():
    arguments = {"x": FIVE, "flag": True, "options": {"rows": [FIVE], "scale": 0.5}}
    shapes = examples.torch_dynamic_shapes(arguments, Method("m"))
    expected = {"x": {}, "flag": None, "options": {"rows": [{}], "scale": None}}
    assert shapes == expected
