"""Factories for the argument MODEL of the command line: a tiny decoder, broken ones."""

import json
import sys

import torch

from kvc.compiler import ModelSpec
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_methods

CONFIG = DecoderConfig(
    vocab=256, dim=32, layers=1, heads=2, kv_heads=1, ffn=48, capacity=24
)


def factory() -> ModelSpec:
    """Return a byte-level decoder with random weights and a cache of 24 slots."""
    torch.manual_seed(0)
    methods = decoder_methods(CONFIG, max_chunk=16)
    return ModelSpec(Decoder(CONFIG).eval(), methods, metadata={"tokenizer": "bytes"})


def untold() -> ModelSpec:
    """Return the same decoder without a tokenizer."""
    torch.manual_seed(0)
    return ModelSpec(Decoder(CONFIG).eval(), decoder_methods(CONFIG, max_chunk=16))


def failing() -> ModelSpec:
    """Raise an error, as a user's factory may."""
    raise RuntimeError("no such checkpoint")


def failing_within() -> ModelSpec:
    """Raise an error from a library that the factory calls."""
    json.loads("no JSON")
    raise AssertionError


class Unsaid(BaseException):
    """An error that is no `Exception`, and whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


def unsaid() -> ModelSpec:
    """Raise an error that has no text."""
    raise Unsaid


def leaving() -> ModelSpec:
    """Exit the process."""
    sys.exit(3)


def no_spec() -> int:
    """Return something that is no `ModelSpec`."""
    return 3


NUMBER = 3
