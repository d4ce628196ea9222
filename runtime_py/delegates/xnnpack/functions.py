"""The C functions of XNNPACK and pthreadpool that kvc calls, with their types.

In: the two loaded libraries. Out: the same libraries, with argument and result types
set on every function below, so that numbers and addresses can be passed directly. Names
and order of arguments are those of `xnnpack.h`. Every `xnn_` function that is not in
`_RESULTS` returns a status, 0 for success; all run without the GIL.
"""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import (
    c_bool,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from enum import IntEnum
from typing import Any, Final

INVALID_ID: Final = 0xFFFFFFFF
EXTRA_NBYTES: Final = 16  # XNN_EXTRA_BYTES: kernels read this far past an operand
EXTRA_SCALES: Final = 15  # XNN_EXTRA_QUANTIZATION_PARAMS after rows of scales
MAX_RANK: Final = 6  # XNN_MAX_TENSOR_DIMS
EXTERNAL_INPUT: Final = 1
EXTERNAL_OUTPUT: Final = 2
TRANSPOSE_WEIGHTS: Final = 1


class Datatype(IntEnum):
    """The datatype of a subgraph's value: `enum xnn_datatype`."""

    FP32 = 1
    FP16 = 2
    QINT8 = 3
    QCINT8 = 6
    QDINT8 = 9
    INT32 = 11
    QBINT4 = 12
    BF16 = 14


class Unary(IntEnum):
    """An operation on each element: `enum xnn_unary_operator`."""

    ABS = 0
    APPROXIMATE_GELU = 1
    ROUND_TO_EVEN = 2
    CEILING = 3
    CLAMP = 4
    CONVERT = 5
    COSINE = 6
    ELU = 7
    EXP = 8
    FLOOR = 9
    GELU = 10
    HARDSWISH = 11
    LEAKY_RELU = 12
    LOG = 13
    NEGATE = 14
    RECIPROCAL_SQUARE_ROOT = 15
    SIGMOID = 16
    SINE = 17
    SQUARE_ROOT = 18
    SQUARE = 19
    TANH = 20


class Binary(IntEnum):
    """An operation on two elements, with broadcast: `enum xnn_binary_operator`."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3
    MAXIMUM = 4
    MINIMUM = 5


class Reduction(IntEnum):
    """A reduction operation: `enum xnn_reduce_operator`."""

    SUM = 0
    SUM_OF_SQUARES = 1
    MEAN = 2
    MEAN_OF_SQUARES = 3
    MAX = 4
    MIN = 5


class UnaryParameters(ctypes.Structure):
    """`union xnn_unary_params`: two bounds, or one factor in `first`."""

    _fields_ = (("first", c_float), ("second", c_float))


class ExternalValue(ctypes.Structure):
    """`struct xnn_external_value`: the address of an input or output."""

    _fields_ = (("id", c_uint32), ("address", c_void_p))


class Fingerprint(ctypes.Structure):
    """`struct xnn_fingerprint`: a kind of packing, and a digest of a packed sample."""

    _fields_ = (("id", c_uint32), ("value", c_uint32))


class CacheKey(ctypes.Structure):
    """`struct xnn_weights_cache_look_up_key`, which identifies a packed weight."""

    _fields_ = (
        ("seed", c_uint32),
        ("kernel", c_void_p),
        ("bias", c_void_p),
        ("fingerprint", c_uint32),
    )


LOOK_UP: Final = ctypes.CFUNCTYPE(c_size_t, c_void_p, ctypes.POINTER(CacheKey))
RESERVE: Final = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_size_t)
INSERT: Final = ctypes.CFUNCTYPE(
    c_size_t, c_void_p, ctypes.POINTER(CacheKey), c_size_t, c_size_t
)
IS_FINALIZED: Final = ctypes.CFUNCTYPE(c_bool, c_void_p)
ADDRESS_OF: Final = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_size_t)
DELETE: Final = ctypes.CFUNCTYPE(c_int32, c_void_p)
ALIAS: Final = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p)


class CacheProvider(ctypes.Structure):
    """`struct xnn_weights_cache_provider`; the caller must keep its functions alive."""

    _fields_ = (
        ("context", c_void_p),
        ("look_up", LOOK_UP),
        ("reserve_space", RESERVE),
        ("look_up_or_insert", INSERT),
        ("is_finalized", IS_FINALIZED),
        ("offset_to_addr", ADDRESS_OF),
        ("delete_cache", DELETE),
        ("alias_data", ALIAS),
    )


_SIZES: Final = ctypes.POINTER(c_size_t)
_SIGNED: Final = ctypes.POINTER(c_int64)
_IDS: Final = ctypes.POINTER(c_uint32)
_DATATYPE: Final = ctypes.c_int
_OPERATOR: Final = ctypes.c_int
_OUT: Final = ctypes.c_void_p
_DATA: Final = ctypes.c_void_p
_GRAPH: Final = ctypes.c_void_p
_RUNTIME: Final = ctypes.c_void_p
_ID: Final = c_uint32
_FLAGS: Final = c_uint32

# Last arguments of a value's definition: external id, flags, pointer for the id.
_VALUE: Final = (_ID, _FLAGS, _IDS)
# Last arguments of a node's definition: input, output, flags.
_NODE: Final = (_ID, _ID, _FLAGS)

_SUBGRAPHS: Final[Mapping[str, Sequence[object]]] = {
    "xnn_initialize": (c_void_p,),
    "xnn_create_subgraph": (c_uint32, _FLAGS, _OUT),
    "xnn_delete_subgraph": (_GRAPH,),
    "xnn_define_tensor_value": (_GRAPH, _DATATYPE, c_size_t, _SIZES, _DATA, *_VALUE),
    "xnn_define_dynamically_quantized_tensor_value": (
        *(_GRAPH, _DATATYPE, c_size_t, c_size_t, _SIZES),
        *_VALUE,
    ),
    # datatype, scales, rank, axis of channels, dims, data
    "xnn_define_channelwise_quantized_tensor_value": (
        *(_GRAPH, _DATATYPE, _DATA, c_size_t, c_size_t, _SIZES, _DATA),
        *_VALUE,
    ),
    # datatype, zero point, scales, rank, axis of channels, block, dims, data
    "xnn_define_blockwise_quantized_tensor_value": (
        *(_GRAPH, _DATATYPE, c_int32, _DATA, c_size_t, c_size_t, c_size_t),
        *(_SIZES, _DATA),
        *_VALUE,
    ),
}
_NODES: Final[Mapping[str, Sequence[object]]] = {
    "xnn_define_unary": (_GRAPH, _OPERATOR, _DATA, *_NODE),
    "xnn_define_binary": (_GRAPH, _OPERATOR, _DATA, _ID, *_NODE),
    "xnn_define_convert": (_GRAPH, *_NODE),
    "xnn_define_copy": (_GRAPH, *_NODE),
    "xnn_define_softmax": (_GRAPH, *_NODE),
    # bounds of the output; input, filter, bias, output
    "xnn_define_fully_connected": (_GRAPH, c_float, c_float, _ID, _ID, *_NODE),
    "xnn_define_batch_matrix_multiply": (_GRAPH, _ID, *_NODE),
    # input, weights, output
    "xnn_define_rope": (_GRAPH, c_size_t, _ID, *_NODE),
    "xnn_define_static_reshape": (_GRAPH, c_size_t, _SIZES, *_NODE),
    "xnn_define_static_broadcast": (_GRAPH, c_size_t, _SIZES, *_NODE),
    "xnn_define_static_expand_dims": (_GRAPH, c_size_t, _SIZES, *_NODE),
    "xnn_define_static_transpose": (_GRAPH, c_size_t, _SIZES, *_NODE),
    "xnn_define_fuse_dims": (_GRAPH, c_size_t, c_size_t, *_NODE),
    "xnn_define_split_dim": (_GRAPH, c_size_t, c_size_t, _SIZES, *_NODE),
    "xnn_define_static_slice_v2": (_GRAPH, c_size_t, _SIGNED, _SIZES, *_NODE),
    # begins, ends, strides
    "xnn_define_static_slice_v3": (
        *(_GRAPH, c_size_t, _SIGNED, _SIGNED, _SIGNED),
        *_NODE,
    ),
    "xnn_define_static_reduce_v2": (_GRAPH, _OPERATOR, c_size_t, _SIGNED, *_NODE),
    "xnn_define_static_constant_pad_v2": (
        *(_GRAPH, c_size_t, _SIZES, _SIZES, c_float),
        *_NODE,
    ),
    # padding, kernel, stride, dilation, groups, channels in and out of a group, bounds
    "xnn_define_convolution_2d": (
        *((_GRAPH,) + (c_uint32,) * 11 + (c_size_t, c_size_t, c_float, c_float)),
        *(_ID, _ID, *_NODE),
    ),
    # padding, kernel, stride, dilation, results of a channel, channels, bounds
    "xnn_define_depthwise_convolution_2d": (
        *((_GRAPH,) + (c_uint32,) * 11 + (c_size_t, c_float, c_float)),
        *(_ID, _ID, *_NODE),
    ),
    # padding, adjustment, kernel, upsampling, dilation, groups, channels in and out of
    # a group, bounds
    "xnn_define_deconvolution_2d": (
        *((_GRAPH,) + (c_uint32,) * 13 + (c_size_t, c_size_t, c_float, c_float)),
        *(_ID, _ID, *_NODE),
    ),
    # height and width
    "xnn_define_static_resize_bilinear_2d": (_GRAPH, c_size_t, c_size_t, *_NODE),
    "xnn_define_concatenate": (_GRAPH, c_int32, c_size_t, _IDS, _ID, _FLAGS),
    "xnn_define_even_split": (_GRAPH, c_int32, _ID, c_size_t, _IDS, _FLAGS),
}
_RUNTIMES: Final[Mapping[str, Sequence[object]]] = {
    "xnn_create_weights_cache_with_size": (c_size_t, _OUT),
    "xnn_finalize_weights_cache": (c_void_p, ctypes.c_int),
    "xnn_delete_weights_cache": (c_void_p,),
    "xnn_create_workspace": (_OUT,),
    "xnn_release_workspace": (c_void_p,),
    # subgraph, weights cache, workspace, pool, flags
    "xnn_create_runtime_v4": (_GRAPH, c_void_p, c_void_p, c_void_p, _FLAGS, _OUT),
    "xnn_reshape_external_value": (_RUNTIME, _ID, c_size_t, _SIZES),
    "xnn_get_external_value_shape": (_RUNTIME, _ID, _SIZES, _SIZES),
    "xnn_reshape_runtime": (_RUNTIME,),
    "xnn_setup_runtime_v2": (_RUNTIME, c_size_t, ctypes.POINTER(ExternalValue)),
    "xnn_invoke_runtime": (_RUNTIME,),
    # requested property, room for it, and its size
    "xnn_get_runtime_profiling_info": (
        *(_RUNTIME, ctypes.c_int, c_size_t, c_void_p, ctypes.POINTER(c_size_t)),
    ),
    "xnn_delete_runtime": (_RUNTIME,),
}
_RESULTS: Final[Mapping[str, tuple[object, Sequence[object]]]] = {
    "xnn_experimental_get_build_identifier_data": (c_void_p, ()),
    "xnn_experimental_get_build_identifier_size": (c_size_t, ()),
    "xnn_get_fingerprint": (ctypes.POINTER(Fingerprint), (c_uint32,)),
}
_POOLS: Final[Mapping[str, tuple[object, Sequence[object]]]] = {
    "pthreadpool_create": (c_void_p, (c_size_t,)),
    "pthreadpool_destroy": (None, (c_void_p,)),
    "pthreadpool_get_threads_count": (c_size_t, (c_void_p,)),
}


def declare_xnnpack(library: ctypes.CDLL) -> None:
    """Set the types of all functions of XNNPACK.

    Raises:
        AttributeError: the library lacks a function.
    """
    for table in (_SUBGRAPHS, _NODES, _RUNTIMES):
        for name, arguments in table.items():
            _declare(library, name, ctypes.c_int, arguments)
    for name, (result, arguments) in _RESULTS.items():
        _declare(library, name, result, arguments)


def declare_pools(library: ctypes.CDLL) -> None:
    """Set the types of all functions of pthreadpool.

    Raises:
        AttributeError: the library lacks a function.
    """
    for name, (result, arguments) in _POOLS.items():
        _declare(library, name, result, arguments)


def _declare(
    library: ctypes.CDLL, name: str, result: object, arguments: Sequence[object]
) -> None:
    # ctypes has no type for the values allowed here.
    function: Any = getattr(library, name)
    function.restype = result
    function.argtypes = tuple(arguments)
