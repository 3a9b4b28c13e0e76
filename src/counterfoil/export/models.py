"""Dual encoders as folders that transformers and sentence-transformers load."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterfoil.core.config import unknown_name
from counterfoil.core.io import atomic_folder, ensure_absent, ensure_writable_folder, write_json
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import WordPieceTokenizer
from counterfoil.models.base import RetrievalModel
from counterfoil.models.clip import DualEncoder

MODULES = {"clip": "CLIPModel", "siglip": "Transformer"}


def write_transformers(folder: Path, model: DualEncoder, processor: Processor) -> None:
    """Configuration, weights, tokenizer and picture format, in the layout of transformers.

    Adapters are added to the weights; the model that is given stays as it is.
    """
    whole = copy.deepcopy(model).cpu()
    whole.merge()
    body: Any = whole.body
    body.save_pretrained(folder)
    _tokenizer(processor, kind=_kind(model)).save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", _pictures(processor, kind=_kind(model)))


def write_sentence_transformers_model(
    folder: Path, model: DualEncoder, processor: Processor
) -> None:
    """The same in a folder of its own, with what makes a vector of it, of length one.

    A SigLIP is a kind of module that sentence-transformers has since 5.4.
    """
    kind = _kind(model)
    inner = f"0_{MODULES[kind]}"
    write_transformers(folder / inner, model, processor)
    (folder / "1_Normalize").mkdir()
    types = (MODULES[kind], "Normalize")
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for place, name in enumerate(types)
    ]
    write_json(folder / "modules.json", modules)
    about = {"__version__": {}, "similarity_fn_name": "cosine", "prompts": {}}
    write_json(folder / "config_sentence_transformers.json", about)
    if kind == "siglip":
        write_json(folder / inner / "sentence_bert_config.json", _reading(processor))


FOLDERS: dict[str, Callable[[Path, DualEncoder, Processor], None]] = {
    "hf": write_transformers,
    "sentence-transformers": write_sentence_transformers_model,
}


def check_export(to: str, folder: Path) -> None:
    """Refuse what cannot be exported, before a model is opened.

    Raises:
        ValueError: no such library, or something is there.
    """
    if to not in FOLDERS:
        raise ValueError(unknown_name(to, ["counterfoil", *FOLDERS], "a form of models"))
    ensure_absent(folder)
    ensure_writable_folder(folder)


def export_model(
    model: RetrievalModel, processor: Processor | None, to: str, folder: Path, *, name: str
) -> None:
    """Write a dual encoder as other libraries load it, whole or not at all.

    Args:
        model: the model.
        processor: what it sees.
        to: for which library, see `FOLDERS`.
        folder: where it goes; must not exist yet.
        name: what the user calls the model, for the error.

    Raises:
        ValueError: no such library, something is there, or a model that no such folder can hold.
    """
    check_export(to, folder)
    if not isinstance(model, DualEncoder) or _kind(model) not in MODULES:
        what = _kind(model) if isinstance(model, DualEncoder) else type(model).__name__
        raise ValueError(
            f"{name} is a {what}; of models, those that come from a Hugging Face CLIP or SigLIP "
            "are exported, and all are shared with --to counterfoil"
        )
    fits = (
        processor is not None
        and isinstance(processor.image_processor, PixelProcessor)
        and not processor.image_processor.divisor
    )
    if processor is None or not fits or not isinstance(processor.tokenizer, WordPieceTokenizer):
        raise ValueError(
            f"{name} does not look at pictures and captions as a Hugging Face model does: it needs "
            "square pixels and its own tokenizer"
        )
    with atomic_folder(folder) as temporary:
        FOLDERS[to](temporary, model, processor)


def _kind(model: DualEncoder) -> str:
    body: Any = model.body
    return str(body.config.model_type)


def _tokenizer(processor: Processor, *, kind: str) -> Any:
    """The tokenizer, which cuts where the model was trained to; a SigLIP masks nothing."""
    assert isinstance(processor.tokenizer, WordPieceTokenizer)
    tokenizer = copy.deepcopy(processor.tokenizer.pretrained)
    tokenizer.model_max_length = processor.tokenizer.longest
    if kind == "siglip":
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
    return tokenizer


def _pictures(processor: Processor, *, kind: str) -> dict[str, object]:
    """How transformers prepares pictures as the model sees them."""
    eye = processor.image_processor
    assert isinstance(eye, PixelProcessor)
    square = {"height": eye.size, "width": eye.size}
    return {
        "image_processor_type": {"clip": "CLIPImageProcessor"}.get(kind, "SiglipImageProcessor"),
        "do_resize": True,
        "size": {"shortest_edge": eye.size} if eye.crop else square,
        "resample": 3,  # bicubic
        "do_center_crop": eye.crop,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(eye.mean),
        "image_std": list(eye.deviation),
        "do_convert_rgb": True,
    }


def _reading(processor: Processor) -> dict[str, object]:
    """How sentence-transformers asks a SigLIP: texts are padded to their full length."""
    assert isinstance(processor.tokenizer, WordPieceTokenizer)
    asked = {"method_output_name": "pooler_output"}
    padding = {"padding": "max_length", "max_length": processor.tokenizer.longest}
    return {
        "transformer_task": "feature-extraction",
        "modality_config": {
            side: {"method": f"get_{side}_features", **asked} for side in ("text", "image")
        },
        "module_output_name": "sentence_embedding",
        "processing_kwargs": {"text": padding},
    }
