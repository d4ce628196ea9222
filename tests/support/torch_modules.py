# ruff: noqa: E501  a table reads best with one line a case
"""Every module class of torch.nn in two configurations or more, with inputs for each.

In: nothing. Out: `CASES`. Classes that compute nothing by themselves, or only with a
process group, are in `NOT_RUN`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Input = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A module class with its arguments, and functions that make the inputs."""

    cls: type[nn.Module]
    inputs: tuple[Input, ...]
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def make(self) -> tuple[nn.Module, tuple[object, ...]]:
        """Return the module in evaluation mode, and its inputs; equal in each call."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module, given = self.cls(*self.args, **self.kwargs), self._given()
            lazy = nn.UninitializedParameter
            if any(isinstance(p, lazy) for p in module.parameters()):
                module(*given)
        return module.eval(), given

    def _given(self) -> tuple[object, ...]:
        return tuple(one() if callable(one) else one for one in self.inputs)

    def __str__(self) -> str:
        words = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        return f"{self.cls.__name__}({', '.join(words)})"


def of(cls: type[nn.Module], inputs: object, *args: object, **kwargs: object) -> Case:
    """Return a case of a module class.

    `inputs` is one input or a tuple of them; functions among them are called to make an
    input.
    """
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return Case(cls, given, args, kwargs)


def f(*shape: int) -> Input:
    return lambda: torch.randn(shape)


def u(*shape: int) -> Input:
    """Return a function that makes random numbers between 0 and 1, of this shape."""
    return lambda: torch.rand(shape) * 0.9 + 0.05


def n(below: int, *shape: int) -> Input:
    return lambda: torch.randint(0, below, shape)


def s(*shape: int) -> Input:
    """Return a function that makes random numbers 1 and -1, of this shape."""
    return lambda: torch.randint(0, 2, shape) * 2.0 - 1


def t(*values: object) -> Input:
    return lambda: torch.tensor(values)


def _pool_indices(rank: int, *, larger: int = 0) -> tuple[Input, ...]:
    """Return functions that make a max pooling's values and indices, to undo it.

    The input of the pooling is [1, 2, 6, ...], with `rank` axes of 6.
    """

    def part(index: int) -> Input:
        def make() -> Tensor:
            x = torch.linspace(-3, 3, 2 * 6**rank).sin().reshape(1, 2, *[6] * rank)
            pool = [nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d][rank - 1]
            return pool(2 + larger, 2, return_indices=True)(x)[index]

        return make

    return part(0), part(1)


def _elementwise() -> list[Case]:
    plain = [
        nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Tanhshrink,
        nn.Softsign, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Mish, nn.Identity,
    ]  # fmt: skip
    cases = [of(cls, shape) for cls in plain for shape in (f(2, 3), f(2, 3, 4))]
    for cls, first, second in (
        (nn.CELU, {}, {"alpha": 2.0}),
        (nn.ELU, {}, {"alpha": 0.5}),
        (nn.GELU, {}, {"approximate": "tanh"}),
        (nn.Hardshrink, {}, {"lambd": 0.2}),
        (nn.Softshrink, {}, {"lambd": 0.2}),
        (nn.Hardtanh, {}, {"min_val": -0.5, "max_val": 0.2}),
        (nn.LeakyReLU, {}, {"negative_slope": 0.3}),
        (nn.PReLU, {}, {"num_parameters": 3}),
        (nn.RReLU, {}, {"lower": 0.2, "upper": 0.4}),
        (nn.Softplus, {}, {"beta": 2.0, "threshold": 1.0}),
        (nn.Threshold, {"threshold": 0.1, "value": 2.0}, {"threshold": -1, "value": 0}),
        (nn.GLU, {"dim": 2}, {"dim": -1}),
        (nn.Softmax, {"dim": 1}, {"dim": -1}),
        (nn.Softmin, {"dim": 1}, {"dim": -1}),
        (nn.LogSoftmax, {"dim": 1}, {"dim": -1}),
        (nn.Dropout, {}, {"p": 0.2, "inplace": True}),
        (nn.AlphaDropout, {}, {"p": 0.2}),
        (nn.FeatureAlphaDropout, {}, {"p": 0.2}),
        (nn.Dropout1d, {}, {"p": 0.2}),
        (nn.Flatten, {}, {"start_dim": 0, "end_dim": 1}),
    ):
        cases += [of(cls, f(2, 3, 4), **first), of(cls, f(2, 3, 4), **second)]
    for cls, shape in ((nn.Softmax2d, (2, 3, 4, 4)), (nn.Dropout2d, (2, 3, 4, 4))):
        cases += [of(cls, f(*shape)), of(cls, f(*shape[1:]))]
    cases += [of(nn.Dropout3d, f(2, 3, 2, 2, 2), p) for p in (0.1, 0.5)]
    cases += [of(nn.ReLU, f(2, 3), inplace=True)]
    return cases


def _padding() -> list[Case]:
    cases = []
    for rank in (1, 2, 3):
        shape = (1, 2, *[4] * rank)
        uneven = (1, 0, 2, 1, 0, 2)[: 2 * rank]
        for name in ("Circular", "Reflection", "Replication", "Zero"):
            cls = getattr(nn, f"{name}Pad{rank}d")
            cases += [of(cls, f(*shape), 2), of(cls, f(*shape), uneven)]
        cls = getattr(nn, f"ConstantPad{rank}d")
        cases += [of(cls, f(*shape), 1, 0.5), of(cls, f(*shape), (-1, 2) * rank, 3.0)]
    return cases


def _pooling() -> list[Case]:
    cases = []
    for rank in (1, 2, 3):
        shape, flat = (1, 2, *[6] * rank), (2, *[6] * rank)
        of_rank = {
            "AvgPool": [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True}],
            "MaxPool": [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2}, {"kernel_size": 2, "return_indices": True}],
            "AdaptiveAvgPool": [{"output_size": 1}, {"output_size": 4}],
            "AdaptiveMaxPool": [{"output_size": 1}, {"output_size": 4, "return_indices": True}],
            "LPPool": [{"norm_type": 2, "kernel_size": 2}, {"norm_type": 3, "kernel_size": 3, "stride": 1}],
        }  # fmt: skip
        for name, all_settings in of_rank.items():
            cls = getattr(nn, f"{name}{rank}d")
            for i, settings in enumerate(all_settings):
                x = u(*shape) if i or name == "LPPool" else f(*flat)
                cases.append(of(cls, x, **settings))
        unpool = getattr(nn, f"MaxUnpool{rank}d")
        cases.append(of(unpool, _pool_indices(rank), 2))
        cases.append(of(unpool, _pool_indices(rank, larger=1), 3, 2))
    for rank in (2, 3):
        cls = getattr(nn, f"FractionalMaxPool{rank}d")
        cases += [of(cls, f(1, 2, *[6] * rank), 2, output_size=3)]
        cases += [of(cls, f(1, 2, *[6] * rank), 2, output_ratio=0.5)]
    return cases


def _convolutions() -> list[Case]:
    cases = []
    for rank in (1, 2, 3):
        shape = (2, 4, *[6] * rank)
        conv, turned = (getattr(nn, f"{k}{rank}d") for k in ("Conv", "ConvTranspose"))
        cases += [
            of(conv, f(*shape), 4, 6, 3),
            of(conv, f(*shape), 4, 6, 3, stride=2, padding=1, groups=2, bias=False),
            of(conv, f(*shape), 4, 4, 3, padding="same", dilation=2, groups=4),
            of(conv, f(*shape), 4, 4, 3, padding=1, padding_mode="circular"),
            of(turned, f(*shape), 4, 6, 3),
            of(turned, f(*shape), 4, 6, 3, 2, 1, 1, groups=2),
            of(getattr(nn, f"LazyConv{rank}d"), f(*shape), 6, 3),
            of(getattr(nn, f"LazyConv{rank}d"), f(*shape), 4, 2, stride=2),
            of(getattr(nn, f"LazyConvTranspose{rank}d"), f(*shape), 6, 3),
            of(getattr(nn, f"LazyConvTranspose{rank}d"), f(*shape), 4, 2, stride=2),
        ]
    return cases


def _norms() -> list[Case]:
    cases = []
    for rank in (1, 2, 3):
        shape = (2, 4, *[3] * rank)
        for kind in ("BatchNorm", "InstanceNorm"):
            cls, lazy = getattr(nn, f"{kind}{rank}d"), getattr(nn, f"Lazy{kind}{rank}d")
            cases += [
                of(cls, f(*shape), 4),
                of(cls, f(*shape), 4, affine=False, track_running_stats=False),
                of(cls, f(*shape), 4, affine=True, track_running_stats=True),
                of(lazy, f(*shape)),
                of(lazy, f(*shape), affine=True, eps=1e-3),
            ]
    cases += [
        of(nn.SyncBatchNorm, f(2, 4, 3), 4),
        of(nn.SyncBatchNorm, f(2, 4, 3, 3), 4, affine=False),
        of(nn.GroupNorm, f(2, 4, 3), 2, 4),
        of(nn.GroupNorm, f(2, 4, 3, 3), 4, 4, affine=False),
        of(nn.LayerNorm, f(2, 4, 3), 3),
        of(nn.LayerNorm, f(2, 4, 3), (4, 3), bias=False),
        of(nn.RMSNorm, f(2, 4, 3), 3),
        of(nn.RMSNorm, f(2, 4, 3), (4, 3), eps=1e-3, elementwise_affine=False),
        of(nn.LocalResponseNorm, f(2, 4, 3, 3), 2),
        of(nn.LocalResponseNorm, f(2, 4, 3), 3, alpha=0.1, k=2.0),
        of(nn.CrossMapLRN2d, f(2, 4, 3, 3), 2),
        of(nn.CrossMapLRN2d, f(2, 4, 3, 3), 3, alpha=0.1, k=2.0),
    ]
    return cases


def _recurrent() -> list[Case]:
    cases = []
    for cls in (nn.RNN, nn.LSTM, nn.GRU):
        cases += [
            of(cls, f(5, 2, 3), 3, 4),
            of(cls, f(2, 5, 3), 3, 4, 2, batch_first=True, bidirectional=True),
            of(cls, f(5, 3), 3, 4, bias=False),
        ]
    state = (f(1, 2, 4), f(1, 2, 4))
    cases += [
        of(nn.LSTM, (f(5, 2, 3), lambda: tuple(each() for each in state)), 3, 4),
        of(nn.LSTM, f(5, 2, 3), 3, 4, proj_size=2),
        of(nn.RNN, (f(5, 2, 3), f(1, 2, 4)), 3, 4, nonlinearity="relu"),
        of(nn.GRU, (f(5, 2, 3), f(1, 2, 4)), 3, 4),
        of(nn.RNNCell, f(2, 3), 3, 4),
        of(nn.RNNCell, (f(2, 3), f(2, 4)), 3, 4, nonlinearity="relu"),
        of(nn.GRUCell, f(2, 3), 3, 4),
        of(nn.GRUCell, (f(2, 3), f(2, 4)), 3, 4, bias=False),
        of(nn.LSTMCell, f(2, 3), 3, 4),
        of(nn.LSTMCell, (f(3), lambda: (torch.ones(4), torch.zeros(4))), 3, 4),
    ]
    return cases


def _attention() -> list[Case]:
    small: dict[str, object] = {"dim_feedforward": 8, "batch_first": True}
    x, y = f(2, 5, 4), f(2, 3, 4)
    added = {"add_bias_kv": True, "add_zero_attn": True}
    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    decoder = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)
    sizes: dict[str, object] = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return [
        of(nn.MultiheadAttention, (x, x, x), 4, 2, batch_first=True),
        of(nn.MultiheadAttention, (f(3, 4), f(5, 3), f(5, 6)), 4, 2, kdim=3, vdim=6),
        of(nn.MultiheadAttention, (x, x, x), 4, 1, **added),
        of(nn.TransformerEncoderLayer, x, 4, 2, **small),
        of(nn.TransformerEncoderLayer, x, 4, 2, 8, activation="gelu", norm_first=True),
        of(nn.TransformerEncoder, x, encoder, 2),
        of(nn.TransformerEncoder, f(5, 4), encoder, 1, nn.LayerNorm(4)),
        of(nn.TransformerDecoderLayer, (y, x), 4, 2, **small),
        of(nn.TransformerDecoderLayer, (f(3, 4), f(5, 4)), 4, 2, 8, norm_first=True),
        of(nn.TransformerDecoder, (y, x), decoder, 2),
        of(nn.TransformerDecoder, (y, x), decoder, 1, nn.LayerNorm(4)),
        of(nn.Transformer, (x, y), 4, 2, **sizes, **small),
        of(nn.Transformer, (f(5, 4), f(3, 4)), 4, 2, **sizes, dim_feedforward=8),
    ]


def _layers() -> list[Case]:
    linear, relu = nn.Linear(3, 4), nn.ReLU()
    return [
        of(nn.Linear, f(2, 3), 3, 4),
        of(nn.Linear, f(3), 3, 4, bias=False),
        of(nn.LazyLinear, f(2, 3), 4),
        of(nn.LazyLinear, f(2, 5, 3), 4, bias=False),
        of(nn.Bilinear, (f(2, 3), f(2, 4)), 3, 4, 5),
        of(nn.Bilinear, (f(3), f(4)), 3, 4, 1, bias=False),
        of(nn.Embedding, n(9, 2, 3), 9, 4),
        of(nn.Embedding, n(9, 3), 9, 4, padding_idx=2),
        of(nn.Embedding, n(9, 3), 9, 4, max_norm=1.0),
        of(nn.EmbeddingBag, n(9, 2, 3), 9, 4),
        of(nn.EmbeddingBag, (n(9, 6), t(0, 2)), 9, 4, mode="sum", padding_idx=2),
        of(nn.EmbeddingBag, n(9, 2, 3), 9, 4, mode="max"),
        of(nn.Sequential, f(2, 3), linear, relu),
        of(nn.Sequential, f(3), relu, nn.Softmax(-1)),
        of(nn.DataParallel, f(2, 3), linear),
        of(nn.DataParallel, f(2, 3), relu),
        of(nn.Unflatten, f(2, 6), 1, (2, 3)),
        of(nn.Unflatten, f(6, 2), 0, (-1, 2)),
        of(nn.Fold, f(1, 8, 9), (4, 4), (2, 2)),
        of(nn.Fold, f(1, 8, 9), (6, 6), (2, 2), stride=2),
        of(nn.Unfold, f(1, 2, 4, 4), (2, 2)),
        of(nn.Unfold, f(1, 2, 6, 6), 3, dilation=2, padding=1, stride=2),
        of(nn.PixelShuffle, f(1, 8, 3, 3), 2),
        of(nn.PixelShuffle, f(9, 2, 3), 3),
        of(nn.PixelUnshuffle, f(1, 2, 4, 4), 2),
        of(nn.PixelUnshuffle, f(2, 6, 3), 3),
        of(nn.ChannelShuffle, f(1, 6, 2, 2), 2),
        of(nn.ChannelShuffle, f(2, 6, 3), 3),
        of(nn.Upsample, f(1, 2, 4), scale_factor=2),
        of(nn.Upsample, f(1, 2, 4), size=7, mode="linear", align_corners=True),
        of(nn.Upsample, f(1, 2, 4, 3), scale_factor=1.5, mode="bilinear"),
        of(nn.Upsample, f(1, 2, 4, 3), size=(5, 7), mode="bicubic"),
        of(nn.Upsample, f(1, 2, 2, 3, 4), scale_factor=2, mode="trilinear"),
        of(nn.Upsample, f(1, 2, 2, 3, 4), scale_factor=2),
        of(nn.UpsamplingBilinear2d, f(1, 2, 4, 3), scale_factor=2),
        of(nn.UpsamplingBilinear2d, f(1, 2, 4, 3), (3, 5)),
        of(nn.UpsamplingNearest2d, f(1, 2, 4, 3), scale_factor=2),
        of(nn.UpsamplingNearest2d, f(1, 2, 4, 3), (3, 5)),
        of(nn.CosineSimilarity, (f(2, 3), f(2, 3))),
        of(nn.CosineSimilarity, (f(2, 3), f(2, 3)), dim=0),
        of(nn.PairwiseDistance, (f(2, 3), f(2, 3))),
        of(nn.PairwiseDistance, (f(2, 3), f(2, 3)), p=1, keepdim=True),
    ]


def _losses() -> list[Case]:
    pairs: dict[type[nn.Module], tuple[object, ...]] = {
        nn.L1Loss: (f(2, 3), f(2, 3)),
        nn.MSELoss: (f(2, 3), f(2, 3)),
        nn.SmoothL1Loss: (f(2, 3), f(2, 3)),
        nn.HuberLoss: (f(2, 3), f(2, 3)),
        nn.BCELoss: (u(2, 3), u(2, 3)),
        nn.BCEWithLogitsLoss: (f(2, 3), u(2, 3)),
        nn.CrossEntropyLoss: (f(2, 3), n(3, 2)),
        nn.KLDivLoss: (f(2, 3), u(2, 3)),
        nn.NLLLoss: (f(2, 3), n(3, 2)),
        nn.NLLLoss2d: (f(2, 3, 4, 4), n(3, 2, 4, 4)),
        nn.PoissonNLLLoss: (f(2, 3), u(2, 3)),
        nn.GaussianNLLLoss: (f(2, 3), f(2, 3), u(2, 3)),
        nn.HingeEmbeddingLoss: (f(2, 3), s(2, 3)),
        nn.SoftMarginLoss: (f(2, 3), s(2, 3)),
        nn.MarginRankingLoss: (f(3), f(3), s(3)),
        nn.CosineEmbeddingLoss: (f(2, 3), f(2, 3), s(2)),
        nn.MultiLabelMarginLoss: (f(2, 3), t([0, 2, -1], [1, -1, 0])),
        nn.MultiLabelSoftMarginLoss: (f(2, 3), n(2, 2, 3)),
        nn.MultiMarginLoss: (f(2, 3), n(3, 2)),
        nn.TripletMarginLoss: (f(2, 3), f(2, 3), f(2, 3)),
        nn.TripletMarginWithDistanceLoss: (f(2, 3), f(2, 3), f(2, 3)),
    }
    cases = [of(cls, inputs) for cls, inputs in pairs.items()]
    cases += [of(cls, inputs, reduction="none") for cls, inputs in pairs.items()]
    log_probs = lambda: torch.randn(6, 2, 4).log_softmax(-1)  # noqa: E731
    ctc = (log_probs, n(3, 2, 3), t(6, 6), t(3, 2))
    return [
        *cases,
        of(nn.CrossEntropyLoss, (f(2, 3), u(2, 3)), label_smoothing=0.1),
        of(nn.CrossEntropyLoss, (f(2, 3, 4), n(3, 2, 4)), ignore_index=1),
        of(nn.CTCLoss, ctc),
        of(nn.CTCLoss, ctc, blank=3, reduction="sum", zero_infinity=True),
        of(nn.AdaptiveLogSoftmaxWithLoss, (f(4, 8), t(0, 3, 6, 9)), 8, 10, [4, 7]),
        of(nn.AdaptiveLogSoftmaxWithLoss, (f(8), lambda: torch.tensor(3)), 8, 10, [4]),
        of(nn.LinearCrossEntropyLoss, (f(4, 3), n(5, 4)), 3, 5),
        of(nn.LinearCrossEntropyLoss, (f(4, 3), n(5, 4)), 3, 5, reduction="sum"),
    ]  # fmt: skip


_MAKERS = _elementwise, _padding, _pooling, _convolutions, _norms
CASES = tuple(
    case
    for make in (*_MAKERS, _recurrent, _attention, _layers, _losses)
    for case in make()
)
# Containers without a forward of their own, and bases of other classes.
NOT_RUN = frozenset({
    nn.Container, nn.Module, nn.ModuleDict, nn.ModuleList, nn.ParameterDict,
    nn.ParameterList, nn.RNNBase, nn.RNNCellBase,
})  # fmt: skip


def module_classes() -> frozenset[type[nn.Module]]:
    found = [each for each in vars(nn).values() if isinstance(each, type)]
    return frozenset(each for each in found if issubclass(each, nn.Module))
