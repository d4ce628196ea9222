"""The operators that ExecuTorch's portable and optimized kernels run.

From `kernels/portable/functions.yaml` and `kernels/optimized/optimized.yaml` of
pytorch/executorch at cff6f4dd (2026-08-22): 203 overloads of these 171. `SAMPLES` says
under which names torch's samples (`op_db`) try each; what computes no inference, or
nothing but memory, has none.
"""

_LISTED = """
_adaptive_avg_pool2d _cdist_forward _conj_physical _fft_c2r _fft_r2c _log_softmax
_native_batch_norm_legit _native_batch_norm_legit_no_training _pdist_forward _softmax
_to_copy _upsample_bilinear2d_aa abs acos acosh add addmm alias_copy amax amin any
arange argmax argmin as_strided_copy asin asinh atan atan2 atanh avg_pool2d
bitwise_and bitwise_not bitwise_or bitwise_xor bmm cat ceil clamp clone
constant_pad_nd convolution convolution_backward copy copy_ cos cosh cumsum
detach_copy diagonal_copy div elu embedding empty eq erf exp expand_copy expm1 fill
flip floor floor_divide fmod full full_like gather ge gelu glu grid_sampler_2d gt
hardtanh index index_put index_put_ index_select isinf isnan le leaky_relu
lift_fresh_copy linear log log10 log1p log2 logical_and logical_not logical_or
logical_xor logit lt masked_fill masked_scatter masked_select max
max_pool2d_with_indices max_pool2d_with_indices_backward maximum mean min minimum mm
mul narrow_copy native_dropout native_group_norm native_layer_norm ne neg nonzero ones
permute_copy pixel_shuffle pixel_unshuffle pow prod rand randn reciprocal
reflection_pad1d reflection_pad2d reflection_pad3d relu remainder repeat
repeat_interleave replication_pad1d replication_pad2d replication_pad3d roll round
rsqrt rsub scalar_tensor scatter scatter_add select_copy select_scatter sigmoid sign
sin sinh slice_copy slice_scatter split_copy split_with_sizes_copy sqrt squeeze_copy
stack sub sum t_copy tan tanh topk transpose_copy tril trunc unbind_copy unfold_copy
unsqueeze_copy upsample_bilinear2d upsample_nearest2d var var_mean view_as_real_copy
view_copy where zeros
"""
OPERATORS = _LISTED.split()
_OTHERWISE = {
    "_adaptive_avg_pool2d": ("nn.functional.adaptive_avg_pool2d",),
    "_cdist_forward": ("cdist",),
    "_conj_physical": ("conj_physical",),
    "_fft_c2r": ("fft.irfft",),
    "_fft_r2c": ("fft.rfft",),
    "_log_softmax": ("log_softmax",),
    "_native_batch_norm_legit_no_training": ("nn.functional.batch_norm",),
    "_pdist_forward": ("nn.functional.pdist",),
    "_softmax": ("softmax",),
    "_to_copy": ("to",),
    "alias_copy": ("view_copy",),
    "convolution": tuple(f"nn.functional.conv{n}d" for n in (1, 2, 3)),
    "copy": ("clone",),
    "copy_": ("clone",),
    "detach_copy": ("view_copy",),
    "index": ("__getitem__",),
    "index_put_": ("index_put",),
    "lift_fresh_copy": ("clone",),
    "max_pool2d_with_indices": ("nn.functional.max_pool2d",),
    "native_dropout": ("nn.functional.dropout",),
    "rand": ("rand_like",),
    "randn": ("randn_like",),
    "reflection_pad1d": ("nn.functional.pad",),
    "reflection_pad2d": ("nn.functional.pad",),
    "reflection_pad3d": ("nn.functional.pad",),
    "replication_pad1d": ("nn.functional.pad",),
    "replication_pad2d": ("nn.functional.pad",),
    "replication_pad3d": ("nn.functional.pad",),
    "upsample_bilinear2d": ("nn.functional.interpolate",),
    "upsample_nearest2d": ("nn.functional.upsample_nearest",),
}


def names_in(known: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Return for each operator the names of its samples, among those of `op_db`."""
    return {name: _names(name, known) for name in OPERATORS}


def _names(name: str, known: frozenset[str]) -> tuple[str, ...]:
    short = name.removesuffix("_copy")
    spellings = (name, short, f"nn.functional.{short}")
    found = _OTHERWISE.get(name) or tuple(s for s in spellings if s in known)[:1]
    return tuple(each for each in found if each in known)
