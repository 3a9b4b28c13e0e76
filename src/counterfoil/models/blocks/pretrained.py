"""Hugging Face models by folder or name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from counterfoil.files import read_json

FILES = ("model.safetensors", "pytorch_model.bin")
HALF = (0.5, 0.5, 0.5)


@final
@dataclass(frozen=True, slots=True)
class PictureFormat:
    """How a model wants its pictures.

    Attributes:
        size: side in pixels.
        mean: of each channel, in 0..1.
        deviation: of each channel, in 0..1.
        crop: the middle square is cut out; else the picture is squeezed.
        frame: more exactly, what comes first and how it is scaled, where that is known.
    """

    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    crop: bool
    frame: str = ""


def encoder_folder(folder: Path) -> Path:
    """Where the encoder lies in a folder; inside, where sentence-transformers saved it there.

    Args:
        folder: any that exists.

    Raises:
        ValueError: it is of sentence-transformers, and its vectors go through layers of others.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        return folder
    plain = read_json(modules, "modules of sentence-transformers")
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in plain]
        inner = folder / str(plain[0]["path"])
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{modules} is damaged: {error!r}") from error
    if more := [kind for kind in kinds[1:] if kind != "Normalize"]:
        raise ValueError(
            f"{folder} is a model of sentence-transformers with a module {more[0]} after its "
            "encoder; only those with a CLIP or SigLIP alone can be opened"
        )
    if not inner.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{modules} names a folder outside of {folder}; the file is refused")
    return inner


def picture_format(name: str) -> PictureFormat:
    """How the model of this folder or name wants its pictures.

    Raises:
        ValueError: it has no image processor that says so.
    """
    transformers = library()
    try:
        plain, _ = transformers.ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name} does not say how its pictures are prepared: it has no preprocessor_config.json"
        ) from error
    crop = bool(plain.get("do_center_crop"))
    normalised = plain.get("do_normalize", True)
    return PictureFormat(
        size=_side(name, plain.get("crop_size" if crop else "size")),
        mean=tuple(plain.get("image_mean") or HALF) if normalised else (0.0, 0.0, 0.0),
        deviation=tuple(plain.get("image_std") or HALF) if normalised else (1.0, 1.0, 1.0),
        crop=crop or "shortest_edge" in _mapping(plain.get("size")),
    )


def config_of(name: str) -> Any:
    """The configuration of the model of this folder or name.

    Raises:
        ValueError: transformers is not installed, or there is no such model.
    """
    try:
        return library().AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_missing(name, error)) from error


def written_config(name: str) -> str:
    """The configuration of the model of this folder or name, as JSON that `load` reads.

    Raises:
        ValueError: transformers is not installed, or there is no such model.
    """
    return as_written(config_of(name))


def as_written(config: Any) -> str:
    """A configuration as JSON that `load` reads."""
    return json.dumps(json.loads(config.to_json_string(use_diff=False)), sort_keys=True)


def weights_file(name: str) -> Path:
    """Where the weights of a folder or name lie; those of a name are fetched.

    Raises:
        ValueError: transformers is not installed, or there are none in one file.
    """
    reason = ""
    for file in FILES:
        try:
            found = library().utils.cached_file(name, file)
        except (OSError, ValueError) as error:
            reason = reason or (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
            continue
        return Path(found)
    raise ValueError(f"{name} has no {' or '.join(FILES)} that can be read here: {reason}")


def load(name: str, *, pretrained: bool, config: str | None = None) -> nn.Module:
    """The model of this folder or name in single precision; with fresh weights if not pretrained.

    Args:
        name: folder or name.
        pretrained: load its weights.
        config: what `written_config` wrote, for a model with fresh weights; then nothing is asked
            of the folder or the hub.

    Raises:
        ValueError: transformers is not installed, or there is no such model.
    """
    transformers = library()
    quiet = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        if pretrained:
            model = transformers.AutoModel.from_pretrained(name, dtype=torch.float32)
        else:
            found = _read_config(config) if config else config_of(name)
            model = transformers.AutoModel.from_config(found, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_missing(name, error)) from error
    finally:
        transformers.utils.logging.set_verbosity(quiet)
    assert isinstance(model, nn.Module)
    return model.eval()


def rest_unused(module: nn.Module, output: Tensor) -> None:
    """Freeze the parameters of a model that the output does not depend on.

    A pretrained model brings heads that a tower never reads; distributed training must not wait
    for their gradients.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if not output.requires_grad:
        return
    grads = torch.autograd.grad(output.sum(), trained, allow_unused=True)
    for parameter, grad in zip(trained, grads, strict=True):
        parameter.requires_grad_(grad is not None)


def library() -> Any:
    """Hugging Face transformers.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            'this needs Hugging Face transformers: pip install "counterfoil[hf]"'
        ) from error
    return transformers


def _read_config(written: str) -> Any:
    plain = json.loads(written)
    return library().AutoConfig.for_model(plain.pop("model_type"), **plain)


def _missing(name: str, error: Exception) -> str:
    reason = (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
    return (
        f"{name} cannot be loaded as a Hugging Face model: {reason}; give a folder with "
        "config.json and weights, or the name of a model on the hub"
    )


def _mapping(size: object) -> dict[str, int]:
    return dict(size) if isinstance(size, dict) else {}


def _side(name: str, size: object) -> int:
    """The side of a square, from the forms that processors write it in."""
    sides = _mapping(size)
    found = {sides[key] for key in ("height", "width", "shortest_edge") if key in sides}
    if isinstance(size, int):
        found = {size}
    if len(found) != 1:
        raise ValueError(f"{name} reads pictures of size {size}; only square ones can be given")
    return int(found.pop())
