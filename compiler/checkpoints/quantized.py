"""Matrices of checkpoints that tools for quantization wrote, as `PackedTensor`s.

In: the quantization settings of config.json, and the tensors of a checkpoint. Out: the
tensors that a checkpoint without quantization has. The formats are those of GPTQ
(Frantar and others, 2022; AutoGPTQ's and GPTQModel's files), AWQ (Lin and others,
2023), the library compressed-tensors, bitsandbytes, DeepSeek's blocks of FP8, OCP's
MXFP4, and MLX.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvc.compiler.checkpoints.blocks_of_floats import fp8, int8_rows, mxfp4, table4
from kvc.compiler.checkpoints.loading import NamedTensor
from kvc.compiler.checkpoints.packed_integers import (
    awq,
    compressed,
    gptq,
    mlx,
)
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.schema.checkpoints.quantization import check_method, method_of

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
    """

    needed: tuple[str, ...]
    make: Make
    optional: tuple[str, ...] = ()
    plain: str = ".weight"
    dropped: tuple[str, ...] = ()


_NF4: Final = "weight.quant_state.bitsandbytes__nf4"
_FP4: Final = "weight.quant_state.bitsandbytes__fp4"
_NESTED: Final = ("weight.nested_absmax", "weight.nested_quant_map")
# Method of quantization -> the forms of its matrices.
FORMATS: Final[Mapping[str, tuple[_Format, ...]]] = {
    "gptq": (_Format(("qweight", "scales", "qzeros"), gptq, ("g_idx",)),),
    "awq": (_Format(("qweight", "scales", "qzeros"), awq),),
    "compressed-tensors": (
        _Format(
            ("weight_packed", "weight_scale", "weight_shape"),
            compressed,
            ("weight_zero_point", "weight_g_idx"),
            dropped=("input_scale", "input_zero_point"),
        ),
        _Format(
            ("weight", "weight_scale"),
            int8_rows,
            dropped=("input_scale", "input_zero_point"),
        ),
    ),
    "fp8": (
        _Format(("weight", "weight_scale_inv"), fp8, dropped=("activation_scale",)),
        _Format(("weight", "weight_scale"), int8_rows, dropped=("input_scale",)),
    ),
    "bitsandbytes": (
        _Format(("weight", "weight.absmax", "weight.quant_map", _NF4), table4, _NESTED),
        _Format(("weight", "weight.absmax", "weight.quant_map", _FP4), table4, _NESTED),
        _Format(("weight", "SCB"), int8_rows, dropped=("weight_format",)),
    ),
    "mxfp4": (_Format(("_blocks", "_scales"), mxfp4, plain=""),),
    "mlx": (_Format(("weight", "scales", "biases"), mlx),),
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
        BadCheckpoint: parts of a matrix are missing, or do not fit each other.
    """
    check_method(config, model)
    method = method_of(config)
    if method is None:
        return dict(tensors)
    key = "quantization" if method == "mlx" else "quantization_config"
    settings = config[key]
    assert isinstance(settings, Mapping)
    found, left = dict[str, NamedTensor](), dict(tensors)
    for form in FORMATS[method]:
        for stem, parts in _matrices(form, left):
            name = f"{stem}{form.plain}"
            found[name] = form.make(name, parts, settings)
            for end in (*form.needed, *form.optional, *form.dropped):
                left.pop(_joined(stem, end), None)
    return {**left, **found}


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
