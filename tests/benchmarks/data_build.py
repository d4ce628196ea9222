"""What `data.py` measures on kvc's side is made here: checkpoints and bundles.

One model a process, figures as one JSON line. It is `kvc.compiler.models.decoder` with
seeded random weights, in a shape given as JSON.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Bundle, ModelSpec, compile_program
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_caches, decoder_methods

SECOND_RECIPE = 'description = "int8 linear layers"\n[linear]\nscheme = "qd8"\n'
Figures = dict[str, float]


class Untied(Decoder):
    """The same, with a head of its own that holds the bytes of the embedding."""

    head: nn.Parameter

    def _logits(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.head)


def model_of(shape: str, kind: type[Decoder] = Decoder) -> ModelSpec:
    """Return a decoder; its weights are normal, and the same each time."""
    config = DecoderConfig(**json.loads(shape))
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                deviation = parameter.shape[1] ** -0.5
                parameter.normal_(0, deviation, generator=generator)
    if isinstance(model, Untied):
        model.head = nn.Parameter(model.embed.weight.detach().clone())
    methods = decoder_methods(config, max_chunk=64)
    return ModelSpec(model, methods, (decoder_caches(config),))


def compiled(spec: ModelSpec, names: str, recipe: str = "fp32") -> Bundle:
    """Compile one method, or `both`."""
    wanted = [m for m in spec.methods if names in (m.name, "both")]
    return compile_program(spec.model, wanted, recipe, states=spec.states)


def build(options: argparse.Namespace) -> Figures:
    """Write the checkpoint of a shape, and a bundle for each choice of methods.

    With `--share`, say also what programs of the model take that share data files.
    """
    folder, spec = options.folder, model_of(options.shape)
    weights = spec.model.state_dict()
    save_file(weights, folder / f"{options.name}.safetensors")
    bundles = {names: compiled(spec, names) for names in options.methods.split(",")}
    figures: Figures = {"weights_nbytes": sum(w.nbytes for w in weights.values())}
    for names, bundle in bundles.items():
        report = bundle.save(folder / f"{options.name}-{names}.kvc")
        figures[f"{names}_nbytes"] = report.file_nbytes
    return figures | (share(options, spec, bundles) if options.share else {})


def share(
    options: argparse.Namespace, spec: ModelSpec, bundles: dict[str, Bundle]
) -> Figures:
    """Save both methods with a data file, and over that file two more programs.

    These are decode alone, and both methods in a second recipe, which keeps the
    embedding in float32 and quantizes the linear layers.
    """
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        second = folder / "second.toml"
        second.write_text(SECOND_RECIPE)
        programs = {
            "both": bundles["both"],
            "decode": bundles["decode"],
            "second": compiled(spec, "both", str(second)),
        }
        figures["second_nbytes"] = (
            programs["second"].save(folder / "alone.kvc").file_nbytes
        )
        for name, bundle in programs.items():
            first = sorted(folder.glob("both-*.kvd"))
            report = bundle.save(folder / f"{name}.kvc", data="external", reuse=first)
            figures[f"{name}_added"] = report.file_nbytes + report.data_nbytes
        untied = compiled(model_of(options.shape, Untied), "both")
        report = untied.save(folder / "untied.kvc")
        figures["untied_nbytes"] = report.file_nbytes
        figures["untied_named"] = report.named_nbytes
    return figures


def main() -> None:
    """Write the files and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--methods", default="both")
    parser.add_argument("--share", action="store_true")
    sys.stdout.write(json.dumps(build(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
