"""Models in the formats of transformers, sentence-transformers and ONNX."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from counterfoil.core.config import unknown_name
from counterfoil.core.io import atomic_folder, ensure_absent, ensure_writable_folder, write_json
from counterfoil.data.images import ResizeCrop
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import WordPieceTokenizer
from counterfoil.export.onnx import write_onnx
from counterfoil.models.base import RetrievalModel
from counterfoil.models.clip import DualEncoder

MODULES = {"clip": "CLIPModel", "siglip": "Transformer"}  # of sentence-transformers, by model type


def write_transformers(folder: Path, model: DualEncoder, processor: Processor) -> None:
    """Write configuration, weights, tokenizer and image processor as transformers lays them out.

    LoRA adapters are merged into the weights of a copy.
    """
    merged = copy.deepcopy(model).cpu()
    merged.merge()
    body: Any = merged.body
    body.save_pretrained(folder)
    tokenizer = _tokenizer(processor).exported()
    tokenizer.model_max_length = _tokenizer(processor).longest
    if _model_type(model) == "siglip":  # it masks nothing
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
    tokenizer.save_pretrained(folder)
    images = _image_settings(processor, _model_type(model))
    write_json(folder / "preprocessor_config.json", images)


def write_sentence_transformers_model(
    folder: Path, model: DualEncoder, processor: Processor
) -> None:
    """Write the folder of `write_transformers` with the modules of sentence-transformers.

    SigLIP needs sentence-transformers 5.4 or newer.
    """
    kind = _model_type(model)
    types = (MODULES[kind], "Normalize")
    for place, name in enumerate(types):
        (folder / f"{place}_{name}").mkdir()
    inner = folder / f"0_{MODULES[kind]}"
    write_transformers(inner, model, processor)
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
    settings = {"__version__": {}, "similarity_fn_name": "cosine", "prompts": {}}
    write_json(folder / "config_sentence_transformers.json", settings)
    if kind == "siglip":
        write_json(inner / "sentence_bert_config.json", _siglip_settings(processor))


FOLDERS: dict[str, Callable[[Path, DualEncoder, Processor], None]] = {
    "hf": write_transformers,
    "sentence-transformers": write_sentence_transformers_model,
}


ONNX = "onnx"


def check_export(to: str, folder: Path) -> None:
    """Check the arguments of an export before a model is opened."""
    if to not in (forms := [*FOLDERS, ONNX]):
        raise ValueError(unknown_name(to, ["counterfoil", *forms], "a form of models"))
    ensure_absent(folder)
    ensure_writable_folder(folder)


def export_model(
    model: RetrievalModel, processor: Processor | None, to: str, folder: Path, *, name: str
) -> None:
    """Write a model in another library's format, atomically; `name` is for messages.

    Dual encoders have the formats of `FOLDERS`; models of one vector per item also ONNX.

    Raises:
        ValueError: the model has no such form, or the folder exists.
    """
    check_export(to, folder)
    if to == ONNX:
        with atomic_folder(folder) as temporary:
            write_onnx(temporary, model, processor, name)
        return
    if not isinstance(model, DualEncoder) or _model_type(model) not in MODULES:
        kind = _model_type(model) if isinstance(model, DualEncoder) else type(model).__name__
        raise ValueError(
            f"{name} is a {kind}; of models, those that come from a Hugging Face CLIP or SigLIP "
            "are exported; others may be with --to onnx, and all are shared with --to counterfoil"
        )
    if (
        processor is None
        or not isinstance(processor.image_processor, PixelProcessor)
        or not isinstance(transform := processor.image_processor.transform, ResizeCrop)
        or transform.fit == "longest"
        or not isinstance(processor.tokenizer, WordPieceTokenizer)
    ):
        raise ValueError(
            f"{name} does not preprocess images and captions as a Hugging Face model does: it "
            "needs square images and its own tokenizer"
        )
    with atomic_folder(folder) as temporary:
        FOLDERS[to](temporary, model, processor)


def _model_type(model: DualEncoder) -> str:
    body: Any = model.body
    return str(body.config.model_type)


def _tokenizer(processor: Processor) -> WordPieceTokenizer:
    assert isinstance(processor.tokenizer, WordPieceTokenizer)
    return processor.tokenizer


def _image_settings(processor: Processor, kind: str) -> dict[str, object]:
    """The image processor's settings in the form of transformers."""
    images = processor.image_processor
    assert isinstance(images, PixelProcessor)
    transform = images.transform
    assert isinstance(transform, ResizeCrop)
    square, length = {"height": images.size, "width": images.size}, transform.resized or images.size
    crop = transform.fit in ("center", "shortest", "shortest-floor") or length > images.size
    return {
        "image_processor_type": "CLIPImageProcessor" if kind == "clip" else "SiglipImageProcessor",
        "do_resize": True,
        "size": (
            {"height": length, "width": length}
            if transform.fit == "squash"
            else {"shortest_edge": length}
        ),
        "resample": Image.Resampling[transform.filter.upper()].value,
        "do_center_crop": crop,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(images.mean),
        "image_std": list(images.deviation),
        "do_convert_rgb": True,
    }


def _siglip_settings(processor: Processor) -> dict[str, object]:
    """Arguments of sentence-transformers for a SigLIP: texts are padded to their full length."""
    return {
        "transformer_task": "feature-extraction",
        "modality_config": {
            side: {"method": f"get_{side}_features", "method_output_name": "pooler_output"}
            for side in ("text", "image")
        },
        "module_output_name": "sentence_embedding",
        "processing_kwargs": {
            "text": {"padding": "max_length", "max_length": _tokenizer(processor).longest}
        },
    }
