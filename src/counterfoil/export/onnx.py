"""Models of one vector per item as ONNX: a graph of each tower, with its preprocessing.

Scaling and normalisation of pixels are inside the graph of images, so it takes bytes; resizing is
Pillow's, whose arithmetic no operator of ONNX has. Captions are read by ``tokenizer.json`` of the
library tokenizers.
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from counterfoil.core import rgb
from counterfoil.core.io import write_json, write_text
from counterfoil.core.optional import first_line, optional_import
from counterfoil.core.types import ModalityBatch
from counterfoil.data.images import ResizeCrop
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import Tokenizer, WordPieceTokenizer
from counterfoil.models.base import RetrievalModel, SingleVectorModel, SupportsLoRA

IMAGES, TEXTS = "images.onnx", "texts.onnx"
TOKENIZER, PREPROCESSING = "tokenizer.json", "preprocessing.json"
CLOSE = 1e-4  # a graph whose vectors differ by more from ours is refused
_CAPTIONS = ("A dog", 'two "red" circles in the snow, and a bird that doesn\'t fly', "snow")
_QUIET = ("torch.onnx", "onnxscript", "onnx_ir")


def write_onnx(folder: Path, model: RetrievalModel, processor: Processor | None, name: str) -> None:
    """Write both graphs, the tokenizer, the preprocessing and a README with code that uses them.

    The graphs are run, and their vectors and scores compared with ours.

    Raises:
        ValueError: the model makes several vectors of an item, its score is no inner product, it
            does not read square pictures and word pieces, or PyTorch cannot export it.
    """
    needs = 'ONNX needs onnx, onnxscript and onnxruntime: pip install "counterfoil[onnx]"'
    for library in ("onnx", "onnxscript", "onnxruntime"):
        optional_import(library, needs)
    if not isinstance(model, SingleVectorModel) or processor is None:
        raise ValueError(
            f"{name} is a {type(model).__name__}; of models, those of one vector per item are "
            "exported to ONNX"
        )
    square = _squares(processor, name)
    tokenizer = _portable_tokenizer(processor.tokenizer, name)
    merged = copy.deepcopy(model).cpu().float().eval()
    if isinstance(merged, SupportsLoRA):
        merged.merge()
    assert isinstance(processor.image_processor, PixelProcessor)
    # two items, as an axis of one would be taken for a constant
    pixels = torch.zeros(2, square.size, square.size, 3, dtype=torch.uint8)
    ids, mask = torch.arange(10).view(2, 5) % 4, torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    images, texts = _ImageGraph(merged, processor.image_processor), _TextGraph(merged)
    _write_graph(folder / IMAGES, images, {"image": pixels}, name)
    _write_graph(folder / TEXTS, texts, {"input_ids": ids, "attention_mask": mask}, name)
    tokenizer.save(str(folder / TOKENIZER))
    write_json(folder / PREPROCESSING, asdict(square))
    _compare(folder, merged, processor, name)
    write_text(folder / "README.md", _readme(name, square, merged))


@final
class _ImageGraph(nn.Module):
    """(N, size, size, 3) uint8 pixels as (N, D) vectors."""

    def __init__(self, model: SingleVectorModel, images: PixelProcessor) -> None:
        super().__init__()
        self.model = model
        shape = (3, 1, 1)
        self.mean = torch.tensor(images.mean).view(shape)
        self.deviation = torch.tensor(images.deviation).view(shape)

    def forward(self, image: Tensor) -> Tensor:
        values = (image.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.deviation
        count = image.shape[0]
        rows, mask = torch.zeros(count, dtype=torch.long), torch.ones(count, 1, dtype=torch.bool)
        return self.model.encode_images(ModalityBatch(rows, values, mask)).tokens[:, 0]


@final
class _TextGraph(nn.Module):
    """(N, L) token ids with their mask as (N, D) vectors."""

    def __init__(self, model: SingleVectorModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        rows = torch.zeros(input_ids.shape[0], dtype=torch.long)
        texts = ModalityBatch(rows, input_ids, attention_mask.bool())
        return self.model.encode_texts(texts).tokens[:, 0]


def _write_graph(path: Path, graph: nn.Module, inputs: Mapping[str, Tensor], name: str) -> None:
    count, length = torch.export.Dim("count"), torch.export.Dim("length")
    shapes = tuple({0: count} if t.dim() == 4 else {0: count, 1: length} for t in inputs.values())
    try:
        with _quiet():
            program = torch.onnx.export(
                graph.eval(),
                tuple(inputs.values()),
                dynamo=True,
                verbose=False,
                input_names=list(inputs),
                output_names=["vectors"],
                dynamic_shapes=shapes,
            )
            assert program is not None
            program.save(path)
    except Exception as error:  # the exporter raises anything at what it does not know
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise ValueError(
            f"{path.stem} of {name} cannot be exported to ONNX by PyTorch {torch.__version__}: "
            f"{first_line(cause)[:200]}; share the model with --to counterfoil"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on what it skips and its libraries' warnings."""
    loggers = [logging.getLogger(name) for name in _QUIET]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _squares(processor: Processor, name: str) -> ResizeCrop:
    """The transform of images to squares."""
    transform = processor.image_processor.transform
    if not isinstance(processor.image_processor, PixelProcessor) or not isinstance(
        transform, ResizeCrop
    ):
        raise ValueError(f"{name} does not read square images; models that do are exported to ONNX")
    return transform


def _portable_tokenizer(tokenizer: Tokenizer | None, name: str) -> Any:
    """A tokenizer of the library tokenizers that cuts, adds special tokens and pads as ours."""
    if not isinstance(tokenizer, WordPieceTokenizer) or not tokenizer.divides:
        raise ValueError(
            f"captions of {name} are read by a {type(tokenizer).__name__}, which has no "
            f"{TOKENIZER} of the library tokenizers; models of transformers are exported to ONNX"
        )
    from tokenizers import Tokenizer as Portable

    portable = Portable.from_str(tokenizer.exported().backend_tokenizer.to_str())
    portable.enable_truncation(max_length=tokenizer.longest)
    pad = tokenizer.pretrained.convert_ids_to_tokens(tokenizer.pad)
    portable.enable_padding(pad_id=tokenizer.pad, pad_token=pad)
    return portable


# The comparison with our vectors.


def _examples(size: int) -> list[Image.Image]:
    """Three pictures of noise, of different shapes."""
    noise = np.random.default_rng(0)
    shapes = [(size + 3 * n, size, 3) for n in range(3)]
    return [Image.fromarray(noise.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes]


def _compare(folder: Path, model: SingleVectorModel, processor: Processor, name: str) -> None:
    """Run the written graphs on what the written tokenizer reads, and compare with ours."""
    import tokenizers

    square = _squares(processor, name)
    pictures = _examples(square.size)
    with torch.inference_mode():
        images = model.encode_images(processor.process_images(pictures))
        texts = model.encode_texts(processor.process_texts(_CAPTIONS))
        scores = model.score_matrix(images, texts)
    read = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER)).encode_batch(list(_CAPTIONS))
    pixels = np.stack([square(picture).transpose(1, 2, 0) for picture in pictures])
    ids, mask = [row.ids for row in read], [row.attention_mask for row in read]
    feeds = {
        IMAGES: (images, {"image": pixels}),
        TEXTS: (texts, {"input_ids": np.array(ids), "attention_mask": np.array(mask)}),
    }
    vectors = []
    for file, (wanted, feed) in feeds.items():
        found = _run(folder / file, feed, name)
        difference = float((wanted.tokens[:, 0] - found).abs().max())
        if not difference <= CLOSE:
            raise ValueError(
                f"{Path(file).stem} of {name} differ by {difference:.2g} between ONNX and PyTorch, "
                f"and {CLOSE:g} is allowed; share the model with --to counterfoil"
            )
        vectors.append(found)
    if not torch.allclose(vectors[0] @ vectors[1].T, scores, rtol=0, atol=CLOSE):
        raise ValueError(
            f"{name} does not score by the inner product of its vectors; models that do are "
            "exported to ONNX"
        )


def _run(path: Path, feed: Mapping[str, NDArray[Any]], name: str) -> Tensor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    if fixed := [side for item in session.get_inputs() if isinstance(side := item.shape[0], int)]:
        raise ValueError(
            f"{path.stem} of {name} depend on their number, {fixed[0]} in the example, so ONNX "
            "cannot hold the model; share it with --to counterfoil"
        )
    return torch.from_numpy(session.run(None, dict(feed))[0])


# The README.


_SQUASH = """\
    picture = picture.resize(({resized}, {resized}), {filter})
    left = top = ({resized} - SIZE) // 2
    return picture.crop((left, top, left + SIZE, top + SIZE))"""
_SHORTEST = """\
    short = min(picture.size)
    width, height = (int({resized} * side / short) for side in picture.size)
    picture = picture.resize((width, height), {filter})
    left, top = {margin}
    return picture.crop((left, top, left + SIZE, top + SIZE))"""
_FITS = {
    "squash": _SQUASH,
    "center": """\
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = picture.crop((left, top, left + side, top + side))
    return picture.resize((SIZE, SIZE), {filter})""",
    "shortest": _SHORTEST.replace(
        "{margin}", "round((width - SIZE) / 2), round((height - SIZE) / 2)"
    ),
    "shortest-floor": _SHORTEST.replace("{margin}", "(width - SIZE) // 2, (height - SIZE) // 2"),
    "longest": """\
    long = max(picture.size) / SIZE
    width, height = (max(1, round(side / long)) for side in picture.size)
    picture = picture.resize((width, height), {filter})
    left, top = -((SIZE - width) // 2), -((SIZE - height) // 2)
    return picture.crop((left, top, left + SIZE, top + SIZE))  # black outside""",
}
_CODE = """\
{rgb}

import onnxruntime
from tokenizers import Tokenizer

SIZE = {size}
images = onnxruntime.InferenceSession("images.onnx")
texts = onnxruntime.InferenceSession("texts.onnx")
tokenizer = Tokenizer.from_file("tokenizer.json")


def resize(path):
    with Image.open(path) as opened:
        picture = rgb(opened)
{fit}


def encode_images(paths):
    pixels = np.stack([np.asarray(resize(path)) for path in paths])  # (N, SIZE, SIZE, 3) uint8
    return images.run(None, {{"image": pixels}})[0]


def encode_texts(captions):
    read = tokenizer.encode_batch(captions)  # cuts long captions and pads the others
    ids, mask = [row.ids for row in read], [row.attention_mask for row in read]
    return texts.run(None, {{"input_ids": np.array(ids), "attention_mask": np.array(mask)}})[0]


scores = encode_images(["photo.jpg"]) @ encode_texts(["a dog in the snow"]).T
"""


def example_code(square: ResizeCrop) -> str:
    """The code of the README, which gives our vectors in the folder of the export."""
    resampling = f"Image.Resampling.{square.filter.upper()}"
    fit = _FITS[square.fit].format(filter=resampling, resized=square.resized or "SIZE")
    return _CODE.format(rgb=inspect.getsource(rgb), size=square.size, fit=fit)


def _readme(name: str, square: ResizeCrop, model: RetrievalModel) -> str:
    return (
        f"# {Path(name).name} as ONNX\n\nA {type(model).__name__}, exported by counterfoil: "
        f"`{IMAGES}` takes resized pixels and normalises them, `{TEXTS}` takes token ids. Both "
        "give a vector per item, for any number of items; the inner product of two is their score."
        f"\n\n```python\n{example_code(square)}```\n"
    )
