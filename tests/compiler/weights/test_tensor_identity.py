import torch

from kvc.compiler.weights.tensor_identity import Identity, overlapping, overlaps_itself

BASE = torch.zeros(8)


def test_two_views_of_one_place_are_one_tensor():
    assert Identity.of(BASE[2:4]) == Identity.of(BASE[2:4])


def test_place_shape_stride_dtype_and_storage_tell_tensors_apart():
    others = [
        BASE[3:5],
        BASE[2:5],
        BASE[2:4].view(2, 1),
        BASE[2:6:2],
        BASE[2:4].view(torch.int32),
        torch.zeros(8)[2:4],
    ]
    assert Identity.of(BASE[2:4]) not in [Identity.of(other) for other in others]


def test_fake_tensors_are_told_apart_though_all_have_one_address():
    one, two = torch.empty(2, device="meta"), torch.empty(2, device="meta")
    assert Identity.of(one) != Identity.of(two)


def test_overlaps_are_found_by_bytes():
    named = {
        "same": BASE[2:4],
        "before": BASE[:2],
        "after": BASE[4:],
        "across": BASE[3:6],
        "around": BASE,
        "elsewhere": torch.zeros(8),
        "empty": BASE[3:3],
    }
    assert overlapping(BASE[2:4], named) == ["across", "around"]


def test_elements_that_share_memory_are_seen():
    for tensor in (
        torch.zeros(1).expand(3),
        torch.zeros(4, 1).expand(4, 3),
        BASE.as_strided((3, 2), (1, 1)),
    ):
        assert overlaps_itself(tensor)


def test_elements_that_lie_apart_are_not_refused():
    for tensor in (
        torch.zeros(()),
        torch.zeros(0).expand(3, 0),
        torch.zeros(1).expand(1, 1),
        torch.zeros(2, 3, 4).permute(2, 0, 1),
        BASE[::3],
    ):
        assert not overlaps_itself(tensor)
