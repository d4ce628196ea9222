"""Matrices of checkpoints that tools for quantization wrote, as `PackedTensor`s.

In: the quantization settings of config.json, and the tensors of a checkpoint. Out: the
tensors that a checkpoint without quantization has. The formats are those of GPTQ
(Frantar and others, 2022; AutoGPTQ's and GPTQModel's files), AWQ (Lin and others,
2023), the library compressed-tensors, bitsandbytes, DeepSeek's blocks of FP8, OCP's
MXFP4 and MXFP8, NVFP4, and MLX.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from kvc.compiler.checkpoints.blocks_of_floats import fp8, int8_rows, mxfp4, table4
from kvc.compiler.checkpoints.loading import NamedTensor
from kvc.compiler.checkpoints.microscaled import compressed_floats, mlx_floats
from kvc.compiler.checkpoints.packed_integers import (
    awq,
    compressed,
    gptq,
    mlx,
)
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.schema.checkpoints.problems import bad_checkpoint
from kvc.schema.checkpoints.quantization import (
    check_method,
    method_of,
    settings_of,
)

Settings = Mapping[str, object]
Parts = Mapping[str, FileTensor]
Make = Callable[[str, Parts, Settings], NamedTensor]


@dataclass(frozen=True, slots=True)
class _Format:
    """One form of a quantized matrix.

    Attributes:
        needed: ends of names of the tensors that each such matrix has.
        optional: ends of names of tensors that it may have.
        make: makes the matrix of its name, tensors and settings.
        plain: what the name of the matrix ends with; "" if it ends with nothing.
        dropped: ends of names of tensors that say nothing new.
        dtypes: end of a part's name -> its dtypes, if they are not those of `_PARTS`.
    """

    needed: tuple[str, ...]
    make: Make
    optional: tuple[str, ...] = ()
    plain: str = ".weight"
    dropped: tuple[str, ...] = ()
    dtypes: Mapping[str, tuple[torch.dtype, ...]] = field(default_factory=dict)


_NF4: Final = "weight.quant_state.bitsandbytes__nf4"
_FP4: Final = "weight.quant_state.bitsandbytes__fp4"
_ZEROS: Final = "weight_zero_point"
_NESTED: Final = ("weight.nested_absmax", "weight.nested_quant_map")
_HALVES: Final = (torch.float16, torch.bfloat16)
_FLOATS: Final = (*_HALVES, torch.float32)
_INTEGERS: Final = (torch.int32, torch.int64)
_SMALL: Final = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
# End of a part's name -> its dtypes, and its numbers of axes.
_PARTS: Final[Mapping[str, tuple[tuple[torch.dtype, ...], tuple[int, ...]]]] = {
    "qweight": ((torch.int32,), (2,)),
    "qzeros": ((torch.int32,), (2,)),
    "scales": (_FLOATS, (2,)),
    "biases": (_FLOATS, (2,)),
    "g_idx": (_INTEGERS, (1,)),
    "weight_packed": ((torch.int32,), (2,)),
    "weight_scale": ((*_FLOATS, torch.uint8), (0, 1, 2)),
    "weight_scale_inv": ((*_FLOATS, torch.uint8), (0, 1, 2)),
    _ZEROS: ((torch.int32,), (2,)),
    "weight_g_idx": (_INTEGERS, (1,)),
    "weight_shape": (_INTEGERS, (1,)),
    "weight_global_scale": ((torch.float32,), (1,)),
    "SCB": ((torch.float32,), (1,)),
    "weight.absmax": ((torch.float32, torch.uint8), (1,)),
    "weight.quant_map": ((torch.float32,), (1,)),
    "weight.nested_absmax": ((torch.float32,), (1,)),
    "weight.nested_quant_map": ((torch.float32,), (1,)),
    _NF4: ((torch.uint8,), (1,)),
    _FP4: ((torch.uint8,), (1,)),
    "_blocks": ((torch.uint8,), (4,)),
    "_scales": ((torch.uint8,), (3,)),
}
_WEIGHTS: Final = (*_SMALL, torch.uint8, torch.int32, torch.uint32)
# Ends of names of tensors that say nothing about weights.
_ACTIVATIONS: Final = (
    "k_scale", "v_scale", "q_scale", "kv_scale", "k_zero_point", "v_zero_point",
    "output_scale", "output_zero_point", "input_scale", "input_zero_point",
    "input_global_scale", "activation_scale",
)  # fmt: skip
# Method of quantization -> the forms of its matrices.
FORMATS: Final[Mapping[str, tuple[_Format, ...]]] = {
    "gptq": (_Format(("qweight", "scales", "qzeros"), gptq, ("g_idx",)),),
    "awq": (_Format(("qweight", "scales", "qzeros"), awq),),
    "compressed-tensors": (
        _Format(
            ("weight_packed", "weight_scale", "weight_shape"),
            compressed,
            (_ZEROS, "weight_g_idx"),
        ),
        _Format(
            ("weight_packed", "weight_scale"),
            compressed_floats,
            ("weight_global_scale",),
            dtypes={
                "weight_packed": (torch.uint8,),
                "weight_scale": (torch.uint8, torch.float8_e4m3fn),
            },
        ),
        _Format(
            ("weight", "weight_scale"),
            int8_rows,
            (_ZEROS,),
            dtypes={_ZEROS: (torch.int8,)},
        ),
    ),
    "fp8": (
        _Format(("weight", "weight_scale_inv"), fp8),
        _Format(("weight", "weight_scale"), int8_rows),
    ),
    "bitsandbytes": (
        _Format(("weight", "weight.absmax", "weight.quant_map", _NF4), table4, _NESTED),
        _Format(("weight", "weight.absmax", "weight.quant_map", _FP4), table4, _NESTED),
        _Format(("weight", "SCB"), int8_rows, dropped=("weight_format",)),
    ),
    "mxfp4": (_Format(("_blocks", "_scales"), mxfp4, plain=""),),
    "mlx": (
        _Format(("weight", "scales", "biases"), mlx),
        _Format(
            ("weight", "scales"),
            mlx_floats,
            dtypes={"weight": (torch.uint32,), "scales": (torch.uint8,)},
        ),
    ),
}


def unpack(
    config: Mapping[str, object], tensors: Mapping[str, FileTensor], model: str
) -> dict[str, NamedTensor]:
    """Return the tensors of a checkpoint, with matrices in place of their parts.

    Args:
        config: the content of config.json.
        tensors: the tensors of the checkpoint by name.
        model: the model's name, for errors.

    Raises:
        UnsupportedModel: the method, or one of its settings, is unknown.
        BadCheckpoint: parts of a matrix are of other dtypes, or do not fit each other.
    """
    check_method(config, model)
    method = method_of(config)
    if method is None:
        return dict(tensors)
    settings = settings_of(config)
    found, left = dict[str, NamedTensor](), dict(tensors)
    for form in FORMATS[method]:
        for stem, parts in _matrices(form, left):
            name = f"{stem}{form.plain}"
            _check_parts(name, parts, form)
            found[name] = form.make(name, parts, settings)
            for end in (*form.needed, *form.optional, *form.dropped):
                left.pop(_joined(stem, end), None)
    if method in ("compressed-tensors", "fp8"):
        left = {n: t for n, t in left.items() if n.split(".")[-1] not in _ACTIVATIONS}
    return {**left, **found}


def _check_parts(name: str, parts: Mapping[str, FileTensor], form: _Format) -> None:
    """Check the dtypes and numbers of axes of the parts of a matrix of a form.

    Raises:
        BadCheckpoint: a part has another dtype than its format has, or other axes.
    """
    for end, part in parts.items():
        usual, ranks = _PARTS.get(end, (_WEIGHTS, (2,)))
        dtypes = form.dtypes.get(end, usual)
        if part.dtype not in dtypes or len(part.shape) not in ranks:
            wrong = f"{name}: its {end} is {part.kind} {list(part.shape)}"
            raise bad_checkpoint([wrong], part.path)


def _matrices(
    form: _Format, tensors: Mapping[str, FileTensor]
) -> Iterator[tuple[str, dict[str, FileTensor]]]:
    """Yield the stems of names, and the tensors, of the matrices of a form."""
    mark = next(end for end in form.needed if end != "weight")
    for name in list(tensors):
        if not name.endswith(mark):
            continue
        stem = name[: -len(mark)].removesuffix(".")
        ends = (*form.needed, *form.optional)
        parts = {end: tensors.get(_joined(stem, end)) for end in ends}
        if all(parts[end] is not None for end in form.needed):
            yield stem, {end: part for end, part in parts.items() if part is not None}


def _joined(stem: str, end: str) -> str:
    return f"{stem}{end}" if end.startswith("_") else f"{stem}.{end}"
