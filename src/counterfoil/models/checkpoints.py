"""Conversion of authors' checkpoints: reading files, and renaming tensors by their prefixes.

All authors save a list of two state dicts, image encoder and text encoder, with the options beside
it; AOQ saves VSRN's captioner as a third, and DivE one dict of both. Only tensors and plain values
are ever read from a file. The key maps are in the files of the models.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.config import Config, config, lazy
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import ImageTower, TextTower
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions, TwoTowerModel

State = dict[str, Tensor]
T = TypeVar("T")
THIRD = "caption_model."  # a third state dict: VSRN's captioner, or a module that scores
PREFIXES = ("img_enc.", "txt_enc.", THIRD)
MOST_SAID = 200  # characters of what does not fit
OPTIONS = ("opt", "args")  # what the options are saved as


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An authors' checkpoint: tensors under `PREFIXES`, and command line options if it has them."""

    state: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A checkpoint converted to a model of this library: its configuration and weights.

    Attributes:
        model: its configuration.
        state: its weights.
        divisor: where its images keep their shape, the number that their sides are multiples of.
        options: those that the authors trained it with, where the checkpoint has them.
    """

    model: Config[RetrievalModel]
    state: State
    divisor: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> RetrievalModel:
        """Build the model with its weights, in evaluation mode."""
        model = self.model.build()
        try:
            model.load_state_dict(self.state)
        except RuntimeError as error:  # which names every tensor
            reason = textwrap.shorten(str(error).splitlines()[-1], MOST_SAID, placeholder=" …")
            raise ValueError(
                f"these weights do not fit ({reason}); give a whole checkpoint of this system"
            ) from error
        return model.eval()


# What a file may hold beside tensors and plain values: the options of a command line, and numbers
# of numpy such as the best recall, which have one name in numpy 1 and another in numpy 2.
_NUMBERS = (np.float16, np.float32, np.float64, np.int32, np.int64, np.bool_)
_SCALAR = np.float64(0).__reduce__()[0]
ALLOWED: tuple[Any, ...] = (
    argparse.Namespace,
    np.dtype,
    *{type(np.dtype(kind)) for kind in _NUMBERS},
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
)
_REFUSED = re.compile(r"GLOBAL ([\w.]+)")  # in what torch says of a class that is not allowed


def read_checkpoint(path: Path) -> Checkpoint:
    """Read ``.pth.tar`` or ``.safetensors``; a file of more than tensors and options is refused."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; give an authors' checkpoint file")
    if path.suffix == ".json":
        raise ValueError(
            f"{path} holds options and no weights; give the checkpoint that was trained with them "
            "(numbers of a training are set by --set, `counterfoil plan` prints them)"
        )
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return Checkpoint(load_file(path))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a whole .safetensors file: {error}") from error
    try:
        with torch.serialization.safe_globals([*ALLOWED]):
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises almost anything
        if refused := _REFUSED.search(str(error)):
            raise ValueError(
                f"{path} cannot be read without running code from it: it holds {refused[1]} beside "
                "tensors, plain values and options; load it where it was written and save its "
                "tensors again, with torch.save or as .safetensors"
            ) from error
        raise ValueError(
            f"{path} is damaged, or nothing that torch.save wrote; give the checkpoint as the "
            "authors saved it, or its tensors as .safetensors"
        ) from error
    return _parts(path, saved)


def _parts(path: Path, saved: object) -> Checkpoint:
    """Return the state dicts and the options from the object that the file holds."""
    options: Mapping[str, Any] = {}
    if isinstance(saved, dict) and "optimizer" in saved and "model" not in saved:
        raise ValueError(
            f"{path} holds the state of an optimiser and no weights, as TAGS and UNITER save it "
            "beside a model; give the file with the weights, such as model_step_5000.pt"
        )
    if isinstance(saved, dict) and "model" in saved:
        options, saved = _options(path, saved), saved["model"]
    elif isinstance(saved, dict) and isinstance(saved.get("model_dict"), dict):  # LightningDOT
        options, saved = _options(path, saved), saved["model_dict"]
    # CHAN also saves state dicts without tensors
    dicts = [part for part in saved if part != {}] if isinstance(saved, list | tuple) else []
    if len(dicts) in (2, 3) and all(_is_state(part) for part in dicts):
        named = zip(PREFIXES, dicts, strict=False)
        saved = {prefix + name: value for prefix, part in named for name, value in part.items()}
    if not _is_state(saved):
        raise ValueError(
            f"{path} holds a {type(saved).__name__}, not the state dicts [image, text] of "
            "an image encoder and a text encoder; give a checkpoint as the authors saved it"
        )
    return Checkpoint(saved, options)


def _is_state(part: object) -> TypeGuard[State]:
    return isinstance(part, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in part.items()
    )


def _options(path: Path, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that a file holds beside its weights; an empty mapping without any."""
    named: Any = next((saved[name] for name in OPTIONS if saved.get(name) is not None), {})
    options = vars(named) if isinstance(named, argparse.Namespace) else named
    if not isinstance(options, Mapping):
        raise ValueError(
            f"{path} has a {type(options).__name__} as its options, which cannot be read; save "
            "them as a dict, or the tensors alone"
        )
    return options


# Tensor names: the prefixes that several models share, and the mapping of a model's names.


PIXELS = ("img_enc.backbone.", "img_enc.image_encoder.", "img_enc.cnn.")
GRU_TOWERS = {  # of VSE++, SCAN and their successors
    "img_enc.fc.": "image.fc.",
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
}
TEXTS = {  # a BiGRU or BERT, as most systems of this family name them
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
    "txt_enc.bert.": "text.body.",
    "txt_enc.linear.": "text.fc.",
}
REGIONS = {  # a linear map beside two more with a norm between them
    "img_enc.fc.": "image.fc.",
    "img_enc.mlp.layers.0.": "image.enter.",
    "img_enc.mlp.layers.1.": "image.leave.",
    "img_enc.mlp.bns.0.": "image.norm.",
}
POSITIONS = "txt_enc.bert.embeddings.position_ids"  # that older versions of BERT saved
UNUSED = ("img_enc.mlp.bns.1.", POSITIONS)  # of `REGIONS`, of BERT
WRAPPER = re.compile(r"(?<!\w)module\.")  # of `nn.DataParallel`


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TensorNames:
    """The mapping of a system's tensor names to this library's."""

    system: str  # name of the system with an article, for messages
    prefixes: Mapping[str, str]  # their prefixes and ours; the first that fits is replaced
    unused: tuple[str, ...] = ()  # prefixes of their tensors that are left out
    needed: tuple[str, ...] = ()  # our names that every checkpoint of the system has
    either: tuple[str, ...] = ()  # our names of which it has at least one

    def ours(self, theirs: str) -> str | None:
        """Return our name of one of their tensors; None for one that is left out."""
        plain = WRAPPER.sub("", theirs)
        if plain.startswith(self.unused):
            return None
        prefix = next((prefix for prefix in self.prefixes if plain.startswith(prefix)), None)
        if prefix is None:
            pixels = "; it was trained on pixels: extract features with its network first"
            hint = pixels if plain.startswith(PIXELS) else ""
            raise ValueError(
                f"{theirs!r} is no tensor of {self.system} checkpoint on features{hint}"
            )
        return self.prefixes[prefix] + plain.removeprefix(prefix)

    def renamed(self, state: Mapping[str, Tensor]) -> State:
        """Rename all tensors but those that are left out; missing or unknown ones are refused."""
        plain = _without_weight_norm(state)
        new = {ours: value for name, value in plain.items() if (ours := self.ours(name))}
        either = () if any(name in new for name in self.either) else self.either[-1:]
        if missing := [name for name in (*self.needed, *either) if name not in new]:
            raise ValueError(
                f"this {self.system.partition(' ')[2]} checkpoint has no {missing[0]!r}; is it "
                "another system's?"
            )
        return new


def longest_prefix(name: str, prefixes: Mapping[str, str]) -> str | None:
    """Return the name with its longest known prefix replaced; None if it has none."""
    prefix = max((p for p in prefixes if name.startswith(p)), key=len, default=None)
    return None if prefix is None else prefixes[prefix] + name.removeprefix(prefix)


def gru_tower_names(system: str) -> TensorNames:
    """Return the tensor names of a model of a linear layer over regions and a GRU."""
    return TensorNames(
        system=system,
        prefixes=GRU_TOWERS,
        needed=("image.fc.weight", "image.fc.bias", "text.embed.weight", "text.rnn.weight_ih_l0"),
    )


def _without_weight_norm(state: Mapping[str, Tensor]) -> State:
    """Multiply out weight normalisation: SCAN and NAAF may save fc as direction and length."""
    new = dict(state)
    for name in [n for n in state if n.endswith("fc.weight_g")]:
        length, direction = new.pop(name), new.pop(name[:-1] + "v")
        norm = direction.norm() if length.numel() == 1 else direction.norm(dim=1, keepdim=True)
        new[name.removesuffix("_g")] = direction * (length / norm)
    return new


# Configurations that fit the tensors and the options of a checkpoint.


BERT = "bert-base-uncased"  # what the authors trained, in every system that reads texts by BERT


def convert_towers(
    model: type[TwoTowerModel],
    checkpoint: Checkpoint,
    state: State,
    *,
    options: Mapping[str, str] = {},
    bert: str = "",
    image: ImageTower | None = None,
    **arguments: Any,
) -> ConvertedModel:
    """Convert a checkpoint of a model of two towers.

    Args:
        model: class of the model.
        checkpoint: as the authors saved it; only its options are read.
        state: its tensors under our names.
        options: constructor arguments that their options set, by the name of the option; where a
            checkpoint lacks one, the default of the constructor holds.
        bert: folder or name of the text model that was trained, for its configuration.
        image: the image tower; by default that on ready-made features that fits the tensors.
        arguments: other constructor arguments beside the towers.
    """
    known = inspect.signature(model).parameters
    for theirs, ours in UNSCALED.items():
        if ours in known:
            arguments[ours] = not checkpoint.options.get(theirs, False)
        else:
            refuse_options(model, checkpoint, {theirs: (False,)})
    written = config(
        model,
        image=image or image_tower_config(state),
        text=text_tower_config(state, bert),
        **arguments,
        **given_options(model, checkpoint, options),
    )
    return ConvertedModel(written, state)


UNSCALED = {"no_imgnorm": "normalise_images", "no_txtnorm": "normalise_texts"}


def refuse_options(
    model: type[RetrievalModel], checkpoint: Checkpoint, known: Mapping[str, tuple[Any, ...]]
) -> None:
    """Refuse a checkpoint trained with an option that would make the class another model.

    Args:
        model: the class.
        checkpoint: as the authors saved it; only its options are read.
        known: the values that each option may have; one that is not there may have any.

    Raises:
        ValueError: an option has another value.
    """
    for name, values in known.items():
        given = checkpoint.options.get(name)
        if given is not None and given not in values:
            raise ValueError(
                f"this checkpoint was trained with {name}={given!r}, and {model.__name__} has it "
                f"with {' or '.join(f'{name}={value!r}' for value in values)} alone; without that "
                "option it would be another model, so it is not converted"
            )


def given_options(
    make: Callable[..., object], checkpoint: Checkpoint, names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of a constructor that the authors' options set, with the default's type.

    `names` has the arguments by the name of the option.
    """
    known, options = inspect.signature(make).parameters, checkpoint.options
    return {
        ours: option_value(options, theirs, known[ours].default)
        for theirs, ours in names.items()
        if options.get(theirs) is not None
    }


def option_value(options: Mapping[str, Any], name: str, default: T) -> T:
    """Return an option with the default's type, or the default where it is missing or None.

    Raises:
        ValueError: the option cannot have that type.
    """
    given = options.get(name)
    if given is None:
        return default
    kind: Any = type(default)
    part = kind is int and isinstance(given, float) and not given.is_integer()
    if part or (kind is str and not isinstance(given, str)):
        raise _no_value(name, given, default)
    try:
        value: T = kind(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_value(name, given, default) from error
    return value


def _no_value(name: str, given: object, default: object) -> ValueError:
    short = textwrap.shorten(repr(given), MOST_SAID, placeholder=" …")
    kind = {str: "text", int: "a whole number", float: "a number"}.get(type(default), "a value")
    return ValueError(
        f"this checkpoint has {name}={short} among its options, where {kind} such as {default!r} "
        "is read; correct the option, or give the checkpoint as its authors saved it"
    )


def image_tower_config(state: State) -> ImageTower:
    """Return the config of the image tower that fits renamed tensors."""
    width, features = _tensor(state, "image.fc.weight").shape
    if "image.enter.weight" not in state:
        return lazy(Regions, features=features, width=width)
    return lazy(MLPRegions, features=features, width=width, inner=len(state["image.enter.weight"]))


def text_tower_config(state: State, bert: str) -> TextTower:
    """Return the config of the text tower that fits renamed tensors; see `convert_towers`."""
    if "text.fc.weight" not in state:
        return gru_config(state)
    return lazy(BertTextTower, name=bert, width=len(state["text.fc.weight"]), pretrained=False)


def gru_config(state: State, **arguments: Any) -> GRU:
    """Return the config of the recurrent text tower that fits renamed tensors."""
    words, word_width = _tensor(state, "text.embed.weight").shape
    return lazy(
        GRU,
        words=words,
        word_width=word_width,
        width=_tensor(state, "text.rnn.weight_hh_l0").shape[1],
        layers=sum(name.startswith("text.rnn.weight_ih_l") for name in state)
        // (2 if "text.rnn.weight_ih_l0_reverse" in state else 1),
        bidirectional="text.rnn.weight_ih_l0_reverse" in state,
        **arguments,
    )


def _tensor(state: State, name: str) -> Tensor:
    if name not in state:
        raise ValueError(f"this checkpoint has no {name!r}; is it whole, and of this system?")
    return state[name]
