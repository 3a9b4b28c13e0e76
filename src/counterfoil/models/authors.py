"""What authors saved of their models, and what is made of it.

All save a list of two state dicts, image encoder and text encoder, with the options beside it; AOQ
saves VSRN's captioner as a third, and DivE one dict of both. Only tensors and plain values are ever
read from a file.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.bert import Bert
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.mlp import MLPRegions
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.spec import Spec, part

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


def image_tower(state: State) -> ImageTower:
    """The image tower that fits these tensors under our names, written down."""
    if "image.enter.weight" not in state:
        return regions(state)
    width, features = state["image.fc.weight"].shape
    return part(MLPRegions, features=features, width=width, inner=len(state["image.enter.weight"]))


def text_tower(state: State, bert: str) -> TextTower:
    """The text tower that fits these tensors under our names, written down.

    Args:
        state: the tensors.
        bert: folder or name of the text model that was trained, for its configuration.
    """
    if "text.fc.weight" not in state:
        return gru(state)
    return part(Bert, name=bert, width=len(state["text.fc.weight"]), pretrained=False)


def regions(state: State) -> Regions:
    """One linear layer over regions that fits these tensors under our names, written down."""
    width, features = state["image.fc.weight"].shape
    return part(Regions, features=features, width=width)


def gru(state: State) -> GRU:
    """The recurrent network that fits these tensors under our names, written down."""
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
        named = saved.get("opt", saved.get("args"))
        options = vars(named) if isinstance(named, argparse.Namespace) else {}
        saved = saved["model"]
    # CHAN also saves parts that have no tensors
    dicts = [one for one in saved if one != {}] if isinstance(saved, list | tuple) else []
    if len(dicts) in (2, 3) and all(isinstance(one, dict) for one in dicts):
        named = zip(PREFIXES, dicts, strict=False)
        saved = {prefix + name: value for prefix, part_ in named for name, value in part_.items()}
    if not isinstance(saved, dict) or not all(isinstance(v, Tensor) for v in saved.values()):
        raise ValueError(
            f"{path} holds a {type(saved).__name__}, not the state dicts [image, text] of "
            "an image encoder and a text encoder; give a checkpoint as the authors saved it"
        )
    return Checkpoint(saved, options)
