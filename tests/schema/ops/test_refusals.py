import pytest

from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import TensorType

INT8, INT64, BOOL, UINT8 = DType.INT8, DType.INT64, DType.BOOL, DType.UINT8
FLOAT64 = DType.FLOAT64


def tensor(*dims: int, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, dims)


def index(*dims: int) -> TensorType:
    return tensor(*dims, dtype=INT64)


SETTINGS = ((1,), (0,), (1,), 1)
LINE, KERNEL = tensor(1, 2, 8), tensor(4, 2, 3)
NO_ENDING = ("identity", None, None)
PAIR = (
    *(LINE, tensor(4, 2, 1), tensor(4), *NO_ENDING),
    *(tensor(4, 1, 3), tensor(4), *SETTINGS[:3], *NO_ENDING),
)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("aten::add.Tensor", (tensor(2, 3), tensor(2), 1)),
        ("aten::where.self", (tensor(2), tensor(2), tensor(2))),
        ("aten::masked_fill.Scalar", (tensor(2), tensor(2, 2, dtype=BOOL), 0)),
        ("aten::masked_fill.Scalar", (tensor(2), tensor(2), 0)),
        ("aten::sum.dim_IntList", (tensor(2, 3), (2,), False)),
        ("aten::sum.dim_IntList", (tensor(2, 3), (1, 1), False)),
        ("aten::amax", (tensor(2, 3), (1, -1), True)),
        ("aten::squeeze.dims", (tensor(2, 1), (1, -1))),
        ("aten::topk", (tensor(4), 5, 0, True, True)),
        ("aten::linear", (tensor(2, 3), tensor(4, 2), None)),
        ("aten::linear", (tensor(2, 3), tensor(4, 3), tensor(3))),
        ("aten::layer_norm", (tensor(2, 3), (2,), None, None, 0.1)),
        ("aten::layer_norm", (tensor(2, 3), (3,), tensor(1), None, 0.1)),
        ("aten::layer_norm", (tensor(2, 3), (3,), None, tensor(2, 3), 0.1)),
        ("aten::matmul", (tensor(2, 3), tensor(2, 3))),
        ("aten::matmul", (tensor(), tensor(2))),
        ("aten::bmm", (tensor(1, 2, 3), tensor(2, 3, 4))),
        ("aten::addmm", (tensor(2, 2, 4), tensor(2, 3), tensor(3, 4), 1, 1)),
        (
            "aten::convolution",
            (tensor(1, 2, 3), tensor(4, 2, 4), None, (1,), (0,), (1,), 1),
        ),
        (
            "aten::convolution",
            (tensor(1, 3, 8), tensor(4, 2, 4), None, (1,), (0,), (1,), 1),
        ),
        *(
            ("aten::conv_transpose1d", (x, tensor(2, 3, 4), bias, *settings))
            for x, bias, settings in (
                (tensor(2, 5), None, ((1,), (0,), (0,), 1, (1,))),
                (tensor(1, 3, 5), None, ((1,), (0,), (0,), 1, (1,))),
                (tensor(1, 2, 5), tensor(2), ((1,), (0,), (0,), 1, (1,))),
                (tensor(1, 2, 5), None, ((1, 1), (0,), (0,), 1, (1,))),
                (tensor(1, 2, 5), None, ((0,), (0,), (0,), 1, (1,))),
                (tensor(1, 2, 5), None, ((1,), (-1,), (0,), 1, (1,))),
                (tensor(1, 2, 5), None, ((1,), (9,), (0,), 1, (1,))),
                (tensor(1, 2, 5), None, ((1,), (0,), (1,), 1, (1,))),
                (tensor(1, 2, 5), None, ((1,), (0,), (0,), 0, (1,))),
                (tensor(1, 2, 5), None, ((1,), (0,), (0,), 3, (1,))),
                (tensor(1, 2, 5), None, ((2**31,), (2**32,), (0,), 1, (1,))),
                (tensor(1, 2, 5), None, ((1,), (2**61,), (0,), 1, (2**61,))),
            )
        ),
        *(
            ("aten::convolution", (LINE, KERNEL, None, *settings))
            for settings in (
                ((1,), (2**61,), (2**61,), 1),
                ((2**61,), (2**61,), (1,), 1),
                ((2**31,), (0,), (1,), 1),
            )
        ),
        *(
            (f"aten::{op}", (tensor(1, 2, *each), tensor(*kernel), None, *settings))
            for op, kernel, each, settings in (
                ("convolution", (4, 2, 0), (8,), SETTINGS),
                ("convolution", (4, 2, 0), (0,), ((1,), (1,), (1,), 1)),
                ("convolution", (4, 1, 3, 0), (8, 8), (*((1, 1), (0, 0), (1, 1)), 2)),
                ("conv_transpose1d", (2, 3, 0), (8,), ((1,), (0,), (0,), 1, (1,))),
                (
                    "conv_transpose2d.input",
                    *((2, 3, 0, 3), (8, 8)),
                    ((1, 1), (0, 0), (0, 0), 1, (1, 1)),
                ),
            )
        ),
        (
            "kvc::convolution",
            (LINE, tensor(4, 2, 0), None, None, *SETTINGS, *NO_ENDING),
        ),
        *(
            ("aten::constant_pad_nd", (tensor(2, 8), padding, 0.0))
            for padding in (
                *((-(2**63), 2**63 - 1), (2**63 - 1, -(2**63))),
                *((-(2**63), 2**63 - 8), (0, 0, 2**63 - 1, -(2**63 - 1))),
            )
        ),
        *(
            ("aten::max_pool2d_with_indices", (tensor(1, 2, 8, 8), *settings, ceil))
            for ceil in (False, True)
            for settings in (
                ((1, 1), (1, 1), (0, 0), (1, 2**63 - 1)),
                ((2, 1), (1, 1), (1, 0), (2**63 - 1, 1)),
                ((1, 2**63 - 1), (1, 1), (0, 2**62), (1, 1)),
                ((1, 2**63 - 1), (1, 1), (0, 2**62 - 1), (1, 1)),
                ((2**62, 1), (1, 1), (2**61, 0), (1, 1)),
            )
        ),
        *(
            ("aten::avg_pool2d", (tensor(1, 2, 8, 8), *settings, ceil, True, None))
            for ceil in (False, True)
            for settings in (
                ((1, 2**63 - 1), (1, 1), (0, 2**62 - 1)),
                ((2**62, 1), (1, 1), (2**61, 0)),
            )
        ),
        (
            "aten::max_pool3d_with_indices",
            (
                tensor(1, 8, 8, 8),
                (2**62, 1, 1),
                (1,) * 3,
                (2**61, 0, 0),
                (1,) * 3,
                False,
            ),
        ),
        *(
            ("kvc::convolution", (x, KERNEL, bias, more, *SETTINGS, *ending))
            for x, bias, more, ending in (
                (LINE, None, None, ("relu", None, None)),
                (LINE, None, None, ("clamp", None, None)),
                (LINE, None, None, ("silu", 0.0, None)),
                (LINE, None, None, ("identity", None, 1.0)),
                (LINE, tensor(2), None, ("silu", None, None)),
                (LINE, None, tensor(1, 4, 8), ("silu", None, None)),
                (LINE, None, tensor(1, 4, 1), ("silu", None, None)),
                (LINE, None, tensor(4, 6), ("silu", None, None)),
                (LINE, None, tensor(1, 4, 6, dtype=FLOAT64), ("silu", None, None)),
                (tensor(1, 2, 8, dtype=FLOAT64), None, None, ("silu", None, None)),
                (tensor(1, 2, 2), None, None, ("silu", None, None)),
            )
        ),
        *(
            ("kvc::pointwise_depthwise", (*PAIR[:place], wrong, *PAIR[place + 1 :]))
            for place, wrong in (
                (0, tensor(1, 3, 8)),
                (0, tensor(2, 8)),
                (0, tensor(1, 2, 2)),
                (0, tensor(1, 2, 8, dtype=FLOAT64)),
                (1, tensor(4, 2, 3)),
                (1, tensor(4, 2)),
                (1, tensor(4, 2, 1, 1)),
                (1, tensor(3, 2, 1)),
                (1, tensor(4, 1, 1)),
                (2, tensor(2)),
                (3, "relu"),
                (3, "clamp"),
                (4, 0.0),
                (6, tensor(4, 2, 3)),
                (6, tensor(8, 1, 3)),
                (6, tensor(4, 1, 9)),
                (6, tensor(4, 1, 0)),
                (6, tensor(4, 1)),
                (6, tensor(4, 1, 3, 3)),
                (7, tensor(1)),
                (8, (0,)),
                (8, (1, 1)),
                (8, (2**31,)),
                (8, ()),
                (9, (-1,)),
                (9, (2**61,)),
                (10, (0,)),
                (10, (2**61,)),
                (11, "relu"),
                (11, "clamp"),
                (13, 1.0),
            )
        ),
        (
            "aten::batch_norm",
            (tensor(2, 3), None, None, tensor(3), tensor(2), 1e-5),
        ),
        ("aten::batch_norm", (tensor(3), None, None, tensor(3), tensor(3), 1e-5)),
        ("aten::group_norm", (tensor(2, 4), 2, tensor(2), None, 1e-5)),
        ("aten::group_norm", (tensor(2, 4), 3, None, None, 1e-5)),
        ("aten::group_norm", (tensor(2, 4), 0, None, None, 1e-5)),
        ("aten::linalg_vector_norm", (tensor(2, 4), 2, (2,), False)),
        ("aten::any.dims", (tensor(2, 4), (2,), False)),
        ("aten::rms_norm", (tensor(2, 3), (2,), None, None)),
        ("aten::embedding", (tensor(4, 3), tensor(2))),
        ("aten::embedding", (tensor(4, 3), tensor(2, dtype=BOOL))),
        ("aten::index_select", (tensor(4, 3), 0, tensor(2, dtype=UINT8))),
        ("aten::index_select", (tensor(4, 3), 2, index(1))),
        ("aten::gather", (tensor(4, 3), 0, tensor(2, 3))),
        ("aten::gather", (tensor(4, 3), 0, index(2, 4))),
        ("aten::index.Tensor", (tensor(4, 3), (tensor(4, dtype=BOOL),))),
        ("aten::index.Tensor", (tensor(4, 3), (tensor(4, dtype=UINT8),))),
        ("aten::index.Tensor", (tensor(4, 3), (None, None))),
        ("aten::index.Tensor", (tensor(4, 3), (index(2), index(3)))),
        ("aten::index_put", (tensor(4, 3), (index(2),), tensor(3, 3), False)),
        (
            "aten::index_put",
            (tensor(4, 3), (index(2),), tensor(2, 3, dtype=FLOAT64), False),
        ),
        ("aten::index_copy", (tensor(4, 3), 0, index(2), tensor(1, 3))),
        ("aten::index_add", (tensor(4, 3), 0, index(2), tensor(1, 3), 1)),
        ("aten::scatter_add", (tensor(4, 3), 0, index(2, 3), tensor(1, 3))),
        ("aten::scatter.src", (tensor(4, 3), 0, index(2, 3), tensor(1, 3))),
        (
            "aten::scatter_reduce.two",
            (tensor(4, 3), 0, index(1, 3), tensor(1, 3), "other", True),
        ),
        (
            "aten::scatter.src",
            (tensor(4, 3), 0, index(1, 3), tensor(1, 3, dtype=FLOAT64)),
        ),
        ("aten::scatter.value", (tensor(4, 3), 0, index(1, 4), 0)),
        ("aten::copy", (tensor(3), tensor(2, 3))),
        ("aten::cat", ((tensor(2, 3), tensor(2, 2)), 0)),
        ("aten::cat", ((tensor(2, 3), tensor(0)), 0)),
        ("aten::stack", ((tensor(2), tensor(3)), 0)),
        ("aten::repeat", (tensor(2, 3), (2,))),
        ("aten::view", (tensor(2, 3), (4, -1))),
        ("aten::view", (tensor(0, 3), (0, -1))),
        ("aten::reshape", (tensor(2, 3), (5,))),
        ("aten::permute", (tensor(2, 3), (0, 0))),
        ("aten::slice.Tensor", (tensor(2, 3), 0, 0, 2, 0)),
        ("aten::select.int", (tensor(2, 3), 0, 2)),
        ("aten::expand", (tensor(2, 3), (4, 3))),
        ("aten::expand", (tensor(2, 3), (-1, 2, 3))),
        ("aten::split_with_sizes", (tensor(4), (1, 2), 0)),
        ("aten::arange.start_step", (0, 5, 0, INT64)),
        ("aten::arange.start_step", (0, 5, 0.5, INT64)),
        (
            "aten::scaled_dot_product_attention",
            (
                tensor(1, 4, 2, 8),
                tensor(1, 2, 3, 8),
                tensor(1, 2, 3, 8),
                None,
                False,
                None,
                False,
            ),
        ),
        (
            "aten::scaled_dot_product_attention",
            (
                tensor(1, 4, 2, 8),
                tensor(1, 3, 3, 8),
                tensor(1, 3, 3, 8),
                None,
                False,
                None,
                True,
            ),
        ),
        (
            "aten::scaled_dot_product_attention",
            (
                tensor(4, 2, 8),
                tensor(4, 3, 8),
                tensor(4, 3, 8),
                tensor(2, 2),
                False,
                None,
                False,
            ),
        ),
        (
            "kvc::cache_update",
            (tensor(1, 8, 4), tensor(1, 9, 4), index(1), 1, "circular", None, 0),
        ),
        (
            "kvc::cache_update",
            (tensor(1, 8, 4), tensor(1, 1, 4), index(1), 0, "linear", None, 0),
        ),
        (
            "kvc::cache_update",
            (tensor(1, 8, 4), tensor(1, 1, 4), index(1), 1, "around", None, 0),
        ),
        (
            "kvc::cache_update",
            (tensor(1, 8, 4), tensor(1, 1, 4), index(1), 1, "linear", index(2), 0),
        ),
        (
            "kvc::cache_update",
            (tensor(1, 8, 4), tensor(1, 1, 4), index(1), 1, "linear", tensor(1), 0),
        ),
        *(
            (
                "kvc::cache_update",
                (tensor(1, 8, 4), tensor(1, 1, 4), index(1), 1, mode, None, keep),
            )
            for mode, keep in (("linear", 2), ("circular", -1), ("circular", 8))
        ),
        *(
            (f"aten::{op}", (tensor(2, 4, 8), kernel, (), (0,) * len(kernel), *rest))
            for kernel in ((2,), (2, 2, 2))
            for op, rest in (
                ("avg_pool2d", (False, True, None)),
                ("max_pool2d_with_indices", ((1,) * len(kernel), False)),
            )
        ),
        ("aten::avg_pool2d", (tensor(4, 8), (2, 2), (), (0, 0), False, True, None)),
        ("aten::avg_pool2d", (tensor(2, 4, 8), (2, 2), (), (2, 0), False, True, None)),
        ("aten::avg_pool2d", (tensor(2, 4, 8), (5, 2), (), (0, 0), False, True, None)),
        (
            "aten::avg_pool2d",
            (tensor(2, 4, 8), (2, 2), (0, 1), (0, 0), False, True, None),
        ),
        ("aten::_adaptive_avg_pool2d", (tensor(2, 4, 8), (2,))),
        ("aten::_adaptive_avg_pool2d", (tensor(2, 0, 8), (2, 2))),
        ("aten::upsample_nearest2d", (tensor(1, 2, 4, 8), (8, 16), 1e-30, 2.0)),
        ("aten::upsample_nearest2d", (tensor(1, 2, 4, 8), (8, 16), float("nan"), None)),
        ("aten::upsample_nearest2d", (tensor(1, 2, 4), (8, 16), None, None)),
        ("aten::grid_sampler_2d", (tensor(1, 2, 4, 8), tensor(1, 3, 3, 3), 0, 0, True)),
        ("aten::grid_sampler_2d", (tensor(1, 2, 4, 8), tensor(1, 3, 3, 2), 3, 0, True)),
        ("aten::grid_sampler_2d", (tensor(1, 2, 0, 8), tensor(1, 3, 3, 2), 0, 0, True)),
        ("aten::kthvalue", (tensor(2, 4), 0, 1, False)),
        ("aten::kthvalue", (tensor(2, 4), 5, 1, False)),
        ("aten::diagonal", (tensor(2, 4), 0, 1, -1)),
        ("aten::unfold", (tensor(2, 4), 1, 5, 1)),
        ("aten::unfold", (tensor(2, 4), 1, 2, 0)),
        ("aten::_cdist_forward", (tensor(2, 4), tensor(2, 3), 2.0, None)),
        ("aten::bucketize.Tensor", (tensor(2), tensor(2, 4), False, False)),
        ("aten::searchsorted.Tensor", (tensor(3, 4), tensor(2, 4), False, False)),
        (
            "aten::_embedding_bag_forward_only",
            (tensor(9, 4), index(3), index(0), 3, None, False, -1),
        ),
        (
            "aten::_embedding_bag_forward_only",
            (tensor(9, 4), index(3), index(0), 0, tensor(2), False, -1),
        ),
        ("kvc::after", (tensor(1), 1)),
        ("kvc::after", (index(1, 1), 1)),
        ("kvc::after", (index(1), -1)),
        ("kvc::quantize_rows", (tensor(2, 0),)),
        ("kvc::glu", (tensor(2, 4), tensor(2, 4), "relu")),
        ("kvc::glu", (tensor(2, 4), tensor(1, 4), "silu")),
        ("kvc::glu", (*(tensor(2, dtype=FLOAT64),) * 2, "silu")),
        ("kvc::rotary_embedding", (tensor(2, 3), tensor(3), tensor(3))),
        ("kvc::rotary_embedding", (tensor(2, 4), tensor(4), tensor(2))),
        ("kvc::rotary_embedding", (tensor(2, 4), tensor(1), tensor(1))),
        ("kvc::rotary_embedding", (tensor(2, 4), tensor(3, 4), tensor(3, 4))),
        ("kvc::rotary_embedding", (tensor(2, 4), tensor(1, 2, 4), tensor(1, 2, 4))),
        ("kvc::rotary_embedding", (tensor(), tensor(), tensor())),
        ("kvc::rotary_embedding", (*(tensor(2, dtype=FLOAT64),) * 3,)),
        ("kvc::quantize_rows", (tensor(2, 3, dtype=FLOAT64),)),
        ("kvc::embedding_q8", (tensor(4, 3, dtype=INT8), tensor(3), index(1))),
    ],
)
def test_arguments_that_do_not_fit_are_refused(op: str, arguments: tuple):
    with pytest.raises(ShapeMismatch):
        OPS[op].rule(*arguments)


def test_a_pair_of_convolutions_has_the_shape_of_the_second():
    rule = OPS["kvc::pointwise_depthwise"].rule
    assert rule(*PAIR) == ((DType.FLOAT32, (1, 4, 6)),)


def test_padding_of_an_update_need_not_fit():
    operands = (tensor(1, 8, 4), tensor(1, 9, 4), index(1), 1, "circular", index(1), 0)
    found = OPS["kvc::cache_update"].rule(*operands)
    assert found == ((DType.FLOAT32, (1, 8, 4)),)


ATTENTION = {
    "q": tensor(2, 4, 3, 8),
    "k": tensor(2, 2, 9, 8),
    "v": tensor(2, 2, 9, 6),
    "valid_length": index(2),
    "scale": None,
    "causal": True,
    "window_left": None,
    "window_right": None,
    "softcap": None,
    "mask": None,
    "slopes": None,
    "sinks": None,
    "layout": "linear",
    "k_scale": None,
    "v_scale": None,
    "row_lengths": None,
    "keep": 0,
}


def attention_of(**changes: object):
    assert list(ATTENTION) == [param.name for param in OPS["kvc::attention"].params]
    return OPS["kvc::attention"].rule(*(ATTENTION | changes).values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window_left": 0, "window_right": 2, "softcap": 30.0, "layout": "circular"},
        {"window_left": 2, "layout": "circular", "keep": 8},
        {"mask": tensor(1, 1, 3, 40, dtype=BOOL), "slopes": tensor(4)},
        {"mask": tensor(2, 4, 3, 0), "sinks": tensor(4, dtype=DType.BFLOAT16)},
        {"row_lengths": index(2)},
    ],
)
def test_attention_gives_what_values_are_wide(changes: dict):
    assert attention_of(**changes) == ((DType.FLOAT32, (2, 4, 3, 6)),)


@pytest.mark.parametrize(
    "changes",
    [
        {"q": tensor(4, 3, 8)},
        {"q": tensor(1, 4, 3, 8)},
        {"q": tensor(2, 3, 3, 8)},
        {"q": tensor(2, 4, 3, 7)},
        {"q": tensor(2, 4, 3, 8, dtype=FLOAT64)},
        {"q": tensor(2, 4, 3, 0), "k": tensor(2, 2, 9, 0)},
        {"q": index(2, 4, 3, 8), "k": index(2, 2, 9, 8), "v": index(2, 2, 9, 8)},
        {"v": tensor(2, 1, 9, 6)},
        {"v": tensor(2, 2, 8, 6)},
        {"k": tensor(2, 0, 9, 8), "v": tensor(2, 0, 9, 6)},
        {"valid_length": index(3)},
        {"valid_length": index(2, 1)},
        {"valid_length": tensor(2)},
        {"window_left": -1},
        {"window_right": -1},
        {"softcap": 0.0},
        {"softcap": float("nan")},
        {"softcap": float("inf")},
        {"mask": tensor(3, 9)},
        {"mask": tensor(3, 1, 3, 9)},
        {"mask": tensor(1, 2, 3, 9)},
        {"mask": tensor(1, 1, 1, 9)},
        {"mask": index(1, 1, 3, 9)},
        {"slopes": tensor(2)},
        {"slopes": tensor(4, dtype=FLOAT64)},
        {"sinks": tensor(4, 1)},
        {"sinks": index(4)},
        {"layout": "round"},
        {"keep": 1},
        {"keep": 9, "layout": "circular"},
        {"keep": -1, "layout": "circular"},
        {"row_lengths": index(3)},
        {"row_lengths": index(2, 1)},
        {"row_lengths": tensor(2, dtype=BOOL)},
    ],
)
def test_attention_refuses_what_does_not_fit(changes: dict):
    with pytest.raises(ShapeMismatch):
        attention_of(**changes)


INT8_CACHE = {
    "k": tensor(2, 2, 9, 8, dtype=INT8),
    "v": tensor(2, 2, 9, 6, dtype=INT8),
    "k_scale": tensor(2, 2, 9),
    "v_scale": tensor(2, 2, 9),
}


def test_attention_over_an_int8_cache_has_the_dtype_of_its_queries():
    half = tensor(2, 4, 3, 8, dtype=DType.BFLOAT16)
    assert attention_of(**INT8_CACHE) == ((DType.FLOAT32, (2, 4, 3, 6)),)
    assert attention_of(q=half, **INT8_CACHE) == ((DType.BFLOAT16, (2, 4, 3, 6)),)


@pytest.mark.parametrize(
    "changes",
    [
        {"k_scale": None},
        {"v_scale": None},
        {"k_scale": None, "v_scale": None},
        {"k": tensor(2, 2, 9, 8)},
        {"v": tensor(2, 2, 9, 6, dtype=UINT8)},
        {"k_scale": tensor(2, 2, 9, 1)},
        {"k_scale": tensor(2, 2, 8)},
        {"v_scale": tensor(1, 2, 9)},
        {"v_scale": tensor(2, 2, 9, dtype=FLOAT64)},
        {"q": tensor(2, 4, 3, 8, dtype=INT8)},
    ],
)
def test_an_int8_cache_has_a_float32_scale_for_each_row(changes: dict):
    with pytest.raises(ShapeMismatch):
        attention_of(**(INT8_CACHE | changes))


@pytest.mark.parametrize("x", [index(2, 4), tensor(), tensor(2, 0)])
def test_only_float_rows_are_quantized(x: TensorType):
    with pytest.raises(ShapeMismatch):
        OPS["kvc::quantize_cache"].rule(x)


Q, STEPS = tensor(2, 64, dtype=INT8), tensor(2, 1)
ZERO = tensor(2, 1, dtype=DType.INT32)
INT4 = tensor(1, 8, 8, 4, dtype=UINT8)
SCALES = tensor(1, 2, 8, dtype=DType.BFLOAT16)
QB4 = (Q, STEPS, ZERO, INT4, SCALES, None)


def test_int4_weights_of_an_older_bundle_say_what_to_do():
    rows = tensor(8, 32, dtype=UINT8)
    with pytest.raises(ShapeMismatch, match="compile the model again"):
        OPS["kvc::linear_qb4"].rule(*QB4[:3], rows, *QB4[4:])


def test_an_int4_linear_has_the_shape_of_its_rows_and_channels():
    rule = OPS["kvc::linear_qb4"].rule
    assert rule(*QB4) == ((DType.FLOAT32, (2, 8)),)
    one_block = tensor(1, 1, 8, dtype=DType.BFLOAT16)
    assert rule(*QB4[:4], one_block, tensor(8)) == ((DType.FLOAT32, (2, 8)),)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, tensor(2, 64)),
        (0, tensor(2, 32, dtype=INT8)),
        (0, tensor(2, 63, dtype=INT8)),
        (0, tensor(dtype=INT8)),
        (1, tensor(2, 1, dtype=FLOAT64)),
        (1, tensor(1, 1)),
        (2, tensor(2, 1)),
        (2, tensor(2, 2, dtype=DType.INT32)),
        (3, tensor(1, 8, 8, 4, dtype=INT8)),
        (3, tensor(1, 16, 8, 4, dtype=UINT8)),
        (3, tensor(1, 8, 4, 8, dtype=UINT8)),
        (3, tensor(1, 8, 8, 8, dtype=UINT8)),
        (3, tensor(1, 8, 32, dtype=UINT8)),
        (3, tensor(8, 32, dtype=UINT8)),
        (3, tensor(8, dtype=UINT8)),
        (4, tensor(1, 2, 8)),
        (4, tensor(2, 2, 8, dtype=DType.BFLOAT16)),
        (4, tensor(1, 2, 7, dtype=DType.BFLOAT16)),
        (4, tensor(1, 4, 8, dtype=DType.BFLOAT16)),
        (4, tensor(1, 3, 8, dtype=DType.BFLOAT16)),
        (4, tensor(1, 0, 8, dtype=DType.BFLOAT16)),
        (4, tensor(8, 2, dtype=DType.BFLOAT16)),
        (4, tensor(16, dtype=DType.BFLOAT16)),
        (5, tensor(7)),
        (5, tensor(8, dtype=FLOAT64)),
    ],
)
def test_an_int4_linear_refuses_what_does_not_fit(place, wrong):
    arguments = (*QB4[:place], wrong, *QB4[place + 1 :])
    with pytest.raises(ShapeMismatch):
        OPS["kvc::linear_qb4"].rule(*arguments)


def test_the_block_of_an_int4_linear_is_a_multiple_of_32():
    q, weight = tensor(2, 96, dtype=INT8), tensor(1, 12, 8, 4, dtype=UINT8)
    rule = OPS["kvc::linear_qb4"].rule
    scales = {n: tensor(1, n, 8, dtype=DType.BFLOAT16) for n in (1, 2, 3, 6, 96)}
    for blocks in (1, 3):
        rule(q, STEPS, ZERO, weight, scales[blocks], None)
    for blocks in (2, 6, 96):
        with pytest.raises(ShapeMismatch, match="rows of 96 values"):
            rule(q, STEPS, ZERO, weight, scales[blocks], None)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [(3, tensor(8, 64)), (4, tensor(8, dtype=FLOAT64)), (4, tensor(7))],
)
def test_an_int8_linear_refuses_what_does_not_fit(place, wrong):
    good = (Q, STEPS, ZERO, tensor(8, 64, dtype=INT8), tensor(8), None)
    assert OPS["kvc::linear_qd8"].rule(*good) == ((DType.FLOAT32, (2, 8)),)
    with pytest.raises(ShapeMismatch):
        OPS["kvc::linear_qd8"].rule(*good[:place], wrong, *good[place + 1 :])


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, tensor(2, 64, dtype=FLOAT64)),
        (0, tensor(2, 63)),
        (1, tensor(8, 64)),
        (2, tensor(8, dtype=FLOAT64)),
        (2, tensor(7)),
        (3, tensor(7)),
        (3, tensor(8, dtype=FLOAT64)),
    ],
)
def test_a_product_of_floats_with_int8_refuses_what_does_not_fit(place, wrong):
    good = (tensor(2, 64), tensor(8, 64, dtype=INT8), tensor(8), tensor(8))
    assert OPS["kvc::linear_w8"].rule(*good) == ((DType.FLOAT32, (2, 8)),)
    with pytest.raises(ShapeMismatch):
        OPS["kvc::linear_w8"].rule(*good[:place], wrong, *good[place + 1 :])


BAG = "aten::_embedding_bag_forward_only"
WRITE = "kvc::cache_update"
CACHE, ROWS = tensor(2, 3, 9, 8), tensor(2, 3, 1, 8)
NOWHERE = index(2)
PLAIN_ATTENTION = "aten::scaled_dot_product_attention"
PLAIN = (None, False, None, False)


@pytest.mark.parametrize(
    ("op", "arguments", "text"),
    [
        (WRITE, (CACHE, ROWS, tensor(2), 2, "linear", None, 0), "are not int64"),
        (WRITE, (CACHE, tensor(2, 3, 8), NOWHERE, 2, "linear", None, 0), " into "),
        (
            WRITE,
            (CACHE, tensor(2, 3, 1, 8, dtype=FLOAT64), NOWHERE, 2, "linear", None, 0),
            " into ",
        ),
        (WRITE, (CACHE, tensor(2, 3, 1, 7), NOWHERE, 2, "linear", None, 0), " into "),
        ("kvc::check_size", (-1, 1), "check_size"),
        (BAG, (tensor(9, 4), index(3), index(0), 0, None, True, -1), "offsets"),
        (BAG, (tensor(9, 4), index(3, 1), index(2), 0, None, False, -1), " and "),
        (BAG, (tensor(9, 4, 1), index(3), index(2), 0, None, False, -1), "weight"),
        ("kvc::embedding_q8", (tensor(4, 3), tensor(4), index(1)), "takes int8"),
        ("aten::gather", (tensor(2, 3), 0, index(2)), "gather of"),
        (
            "aten::index_put",
            (tensor(4, 3), (index(2),), tensor(1, 2, 3), False),
            "values do not fit",
        ),
        ("aten::index_select", (tensor(4), 0, index(2, 2)), "an index of 2 dims"),
        ("aten::index_select", (tensor(), 0, index(2)), "into 0 dims"),
        ("aten::index.Tensor", (tensor(4), (index(1), index(1))), "2 indices into"),
        ("aten::linalg_inv", (tensor(3),), "is no matrix"),
        ("aten::linalg_inv", (tensor(3, 2),), "is no square matrix"),
        ("aten::linalg_solve", (tensor(3, 3), tensor(2, 1), True), "sides of an"),
        ("aten::linalg_solve", (tensor(3, 3), tensor(3), False), "is no matrix"),
        ("aten::_linalg_eigh", (tensor(3, 3), "X", True), "the triangle 'X'"),
        ("aten::linalg_qr", (tensor(3, 3), "whole"), "the mode 'whole'"),
        ("aten::linalg_householder_product", (tensor(3, 2), tensor(4)), "reflections"),
        (
            PLAIN_ATTENTION,
            (*(tensor(1, 2, 3, 4),) * 2, tensor(2, 3, 4), *PLAIN),
            "attention",
        ),
        (
            PLAIN_ATTENTION,
            (tensor(1, 2, 3, 4), *(tensor(1, 2, 3, 5),) * 2, *PLAIN),
            "atten",
        ),
        (
            PLAIN_ATTENTION,
            (*(tensor(1, 2, 3, 4),) * 3, tensor(2, 2, 3, 3), *PLAIN[1:]),
            "mask",
        ),
        ("aten::bmm", (tensor(2, 3), tensor(3, 4)), "bmm takes three dims"),
        ("aten::convolution", (LINE, KERNEL, tensor(3), *SETTINGS), "bias"),
        ("aten::convolution", (LINE, KERNEL, None, (1, 1), *SETTINGS[1:]), "settings"),
        ("aten::convolution", (LINE, KERNEL, None, (0,), *SETTINGS[1:]), "settings"),
        ("aten::convolution", (tensor(2, 8), KERNEL, None, *SETTINGS), "convolution"),
        (
            "aten::convolution",
            (tensor(1, 6, 8), KERNEL, None, *SETTINGS[:3], 3),
            "output channels",
        ),
        ("aten::cat", ((), 0), "cat of nothing"),
        ("aten::full", ((-1,), 0.0, DType.FLOAT32), "size"),
        ("aten::constant_pad_nd", (tensor(2), (1,), 0.0), "."),
        ("aten::constant_pad_nd", (tensor(2), (-2, -1), 0.0), "padding"),
        ("aten::roll", (tensor(2, 2), (1, 2), (0,)), "roll"),
        (
            "aten::grid_sampler_2d",
            (tensor(1, 2, 8), tensor(1, 3, 3, 2), 0, 0, True),
            " at ",
        ),
        ("aten::expand", (tensor(2, 3), (3,)), " to "),
    ],
)
def test_arguments_that_do_not_fit_are_refused_for_what_is_wrong(
    op: str, arguments: tuple, text: str
):
    with pytest.raises(ShapeMismatch, match=text):
        OPS[op].rule(*arguments)
