"""Authors' checkpoints, converted: VSE++, SCAN, BFAN and VSRN.

All save a list of two state dicts, image encoder and text encoder, with the options beside it; AOQ
saves VSRN's captioner as a third. Only tensors and plain values are ever read from a file.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.models.bfan import BFAN
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.scan import SCAN
from counterfoil.models.vse import VSE
from counterfoil.models.vsrn import VSRN
from counterfoil.models.vsrn_names import convert_vsrn, written
from counterfoil.spec import Spec, of, part, unknown

State = dict[str, Tensor]
PREFIXES = ("img_enc.", "txt_enc.", "caption_model.")


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the authors saved.

    Attributes:
        state: their tensors under "img_enc.", "txt_enc." and "caption_model.".
        options: their command line options, where the file has them.
    """

    state: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class Converted:
    """What we make of it.

    Attributes:
        matcher: how to build the model.
        state: what to load into it.
    """

    matcher: Spec[Matcher]
    state: State

    def build(self) -> Matcher:
        """The model with its weights, ready to evaluate.

        Raises:
            ValueError: tensors are missing or of other shapes.
        """
        matcher = self.matcher.build()
        try:
            matcher.load_state_dict(self.state)
        except RuntimeError as error:
            raise ValueError(
                f"these weights do not fit ({str(error).splitlines()[-1].strip()}); give a whole "
                "checkpoint and the settings that it was trained with"
            ) from error
        return matcher.eval()


def read_checkpoint(path: Path) -> Checkpoint:
    """Read ``.pth.tar`` (tensors and plain values only) or ``.safetensors``.

    Raises:
        ValueError: missing, damaged, or holding more than tensors and options.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; give an authors' checkpoint file")
    if path.suffix == ".safetensors":
        return Checkpoint(_safetensors(path))
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(
            f"{path} cannot be read without running code from it ({reason}); load it where it was "
            "written and save its tensors again, with torch.save or as .safetensors"
        ) from error
    return _parts(path, saved)


def convert_vsepp(state: Mapping[str, Tensor]) -> State:
    """VSE++'s tensors under the names of `VSE`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return _renamed(state, "VSE++")


def convert_scan(state: Mapping[str, Tensor]) -> State:
    """SCAN's tensors under the names of `SCAN`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return _renamed(state, "SCAN")


def convert_bfan(state: Mapping[str, Tensor]) -> State:
    """BFAN's tensors under the names of `BFAN`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return _renamed(state, "BFAN")


def vsepp(checkpoint: Checkpoint) -> Converted:
    """VSE++ from a checkpoint alone.

    Raises:
        ValueError: it is not a VSE++ checkpoint on ready-made features.
    """
    state, options = convert_vsepp(checkpoint.state), checkpoint.options
    spec = of(
        VSE,
        image=_regions(state),
        text=_gru(state),
        text_pool="last",
        measure=options.get("measure", "cosine"),
        absolute=bool(options.get("use_abs", False)),
        normalise_images=not options.get("no_imgnorm", False),
    )
    return Converted(spec, state)


def scan(checkpoint: Checkpoint) -> Converted:
    """SCAN from a checkpoint alone; without its options, t2i LogSumExp as published.

    Raises:
        ValueError: it is not a SCAN checkpoint.
    """
    state, options = convert_scan(checkpoint.state), checkpoint.options
    direction = options.get("cross_attn", "t2i")
    spec = of(
        SCAN,
        image=_regions(state),
        text=_gru(state),
        direction=direction,
        raw_norm=options.get("raw_feature_norm", "clipped_l2norm"),
        aggregate=options.get("agg_func", "LogSumExp"),
        lambda_softmax=float(options.get("lambda_softmax", 9 if direction == "t2i" else 4)),
        lambda_lse=float(options.get("lambda_lse", 6 if direction == "t2i" else 5)),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return Converted(spec, state)


def bfan(checkpoint: Checkpoint) -> Converted:
    """BFAN from a checkpoint alone; without its options, "equal".

    Raises:
        ValueError: it is not a BFAN checkpoint.
    """
    state, options = convert_bfan(checkpoint.state), checkpoint.options
    spec = of(
        BFAN,
        image=_regions(state),
        text=_gru(state),
        focus=options.get("focal_type", "equal"),
        lambda_softmax=float(options.get("lambda_softmax", 20)),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return Converted(spec, state)


def vsrn(checkpoint: Checkpoint) -> Converted:
    """VSRN from a checkpoint alone; without its options, Flickr30K's where it has that norm.

    Raises:
        ValueError: it is not a VSRN checkpoint.
    """
    state, options = convert_vsrn(checkpoint.state), checkpoint.options
    batch_norm = "norm.weight" in state
    if "data_name" in options:
        batch_norm = batch_norm and options["data_name"].startswith("f30k")
    if not batch_norm:
        state = {name: value for name, value in state.items() if not name.startswith("norm.")}
    spec = of(
        VSRN,
        image=_regions(state),
        text=_gru(state),
        captioner=written(state, options) if "captioner.fc.weight" in state else None,
        region_norm="channel",
        normalise_regions=not batch_norm,
        batch_norm=batch_norm,
    )
    return Converted(spec, state)


SYSTEMS: Mapping[str, Callable[[Checkpoint], Converted]] = {
    "vsepp": vsepp,
    "scan": scan,
    "bfan": bfan,
    "vsrn": vsrn,
}


def convert(path: Path, system: str) -> Converted:
    """Read and convert an authors' checkpoint of one of `SYSTEMS`.

    Raises:
        ValueError: no such system, or the file is not one of its checkpoints.
    """
    if system not in SYSTEMS:
        raise ValueError(unknown(system, list(SYSTEMS), "a system whose checkpoints are read"))
    return SYSTEMS[system](read_checkpoint(path))


def _safetensors(path: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole .safetensors file: {error}") from error


def _parts(path: Path, saved: object) -> Checkpoint:
    """The two state dicts and the options, from whatever the file held."""
    options: Mapping[str, Any] = {}
    if isinstance(saved, dict) and "model" in saved:
        options = vars(saved["opt"]) if isinstance(saved.get("opt"), argparse.Namespace) else {}
        saved = saved["model"]
    dicts = saved if isinstance(saved, list | tuple) else ()
    if len(dicts) in (2, 3) and all(isinstance(one, dict) for one in dicts):
        named = zip(PREFIXES, dicts, strict=False)
        saved = {prefix + name: value for prefix, part_ in named for name, value in part_.items()}
    if not isinstance(saved, dict) or not all(isinstance(v, Tensor) for v in saved.values()):
        raise ValueError(
            f"{path} holds a {type(saved).__name__}, not the state dicts [image, text] of VSE++, "
            "SCAN, BFAN or VSRN; give one of their checkpoints"
        )
    return Checkpoint(saved, options)


def _renamed(state: Mapping[str, Tensor], system: str) -> State:
    new: State = {}
    for name, value in _unnormed(state).items():
        side, _, rest = name.removeprefix("module.").partition(".")
        to = {"img_enc": "image.", "txt_enc": "text."}.get(side)
        if to is None or not rest.startswith(("fc.", "embed.", "rnn.")):
            pixels = "; it was trained on pixels: extract features with its network first"
            hint = pixels if rest.startswith("cnn.") else ""
            raise ValueError(f"{name!r} is no tensor of a {system} checkpoint on features{hint}")
        new[to + rest] = value
    needed = ("image.fc.weight", "image.fc.bias", "text.embed.weight", "text.rnn.weight_ih_l0")
    if missing := [name for name in needed if name not in new]:
        raise ValueError(f"this {system} checkpoint has no {missing[0]!r}; is it another system's?")
    return new


def _unnormed(state: Mapping[str, Tensor]) -> State:
    """Weight normalisation written out: SCAN may save fc as direction and length."""
    new = dict(state)
    for name in [n for n in state if n.endswith("fc.weight_g")]:
        length, way = new.pop(name), new.pop(name[:-1] + "v")
        norm = way.norm() if length.numel() == 1 else way.norm(dim=1, keepdim=True)
        new[name.removesuffix("_g")] = way * (length / norm)
    return new


def _regions(state: State) -> Regions:
    width, features = state["image.fc.weight"].shape
    return part(Regions, features=features, width=width)


def _gru(state: State) -> GRU:
    words, word_width = state["text.embed.weight"].shape
    return part(
        GRU,
        words=words,
        word_width=word_width,
        width=state["text.rnn.weight_hh_l0"].shape[1],
        layers=sum(name.startswith("text.rnn.weight_ih_l") for name in state)
        // (2 if "text.rnn.weight_ih_l0_reverse" in state else 1),
        bidirectional="text.rnn.weight_ih_l0_reverse" in state,
    )
