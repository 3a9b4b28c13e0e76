"""Models of sentence-transformers: dense and multi-vector embedders, and cross-encoders.

The library itself prepares the inputs and computes, so that vectors and scores are those of
`encode_query`, `encode_document` and `predict`: a caption is the query and a picture the document,
with the prompts that the model has for them. Captions come as characters
(`counterfoil.data.tokenizers.CharacterTokenizer`), pictures whole (`PixelProcessor.whole`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, final, get_args

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from counterfoil.core.io import read_json
from counterfoil.core.model_files import check_model_folder
from counterfoil.core.optional import first_line, hub_options, optional_import, quiet_transformers
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import ENCODER, RetrievalModel, SingleVectorModel, Weights
from counterfoil.models.layers.joint_encoder import tokens_at_once
from counterfoil.models.layers.late_interaction import MaxSimModel
from counterfoil.models.layers.lora import add_lora, lora_state, merge_lora
from counterfoil.models.layers.pooling import (
    PatchGrid,
    check_choice,
    single_vector,
    unit_vectors,
)
from counterfoil.models.library_folders import MODULES, read_modules, read_settings

WEIGHTS = "model.safetensors"
PIXELS_OF_TOKEN = 3 * 16 * 16  # numbers of a picture that count as one token, for batches
LARGEST = 1024  # longest side of a picture in pixels
LARGEST_KEPT = 512  # of a model that keeps the pictures of a data set in memory
_SIDES = ("height", "width", "shortest_edge")

_TYPES = {"stored": "auto", "fp32": torch.float32, "bf16": torch.bfloat16}
ATTENTION = r".*attn.*\.(q_proj|k_proj|v_proj|o_proj|out_proj|qkv|proj)"  # where LoRA adapts
_BACKBONES = ("Transformer", "CLIPModel")  # modules whose weights are large
_LEFT_OUT = (".safetensors", ".bin", ".pt", ".h5", ".msgpack", ".onnx", ".gguf", ".md")
_INDEX = (".safetensors.index.json", ".bin.index.json")


class SentenceTransformersModel(RetrievalModel, ABC):
    """A model that sentence-transformers computes.

    Attributes:
        library_class: name of its class in sentence-transformers.
        own_files: folder, in a saved model, of the files that the constructor reads.
        body: the library's model.
    """

    library_class: ClassVar[str]
    own_files: ClassVar[str] = ENCODER
    body: Any

    def __init__(
        self,
        *,
        name: str,
        pretrained: bool = True,
        weights: Weights = "stored",
        device_map: str | None = None,
        tokens: int = 0,
        lora: int = 0,
        apart: bool = False,
    ) -> None:
        """Initialise the module.

        Args:
            name: folder or name of the model.
            pretrained: False where the weights are loaded afterwards; they may be missing.
            weights: type of the numbers; "stored" leaves them as they are on disk.
            device_map: how the library places a model on several devices, such as "auto"; None
                for the one device of this process.
            tokens: tokens of a pass without gradients, padding and pictures included; 0 for what
                suits the device.
            lora: rank of adapters on the attention projections, which alone are trained; 0 to
                train everything.
            apart: keep adapters beside the weights in a finished model, which then needs peft; else
                they are merged.

        Raises:
            ValueError: there is no such model, it does not read pictures and texts, or it cannot
                have adapters.
        """
        super().__init__()
        check_choice("weights", weights, get_args(Weights))
        if tokens < 0:
            raise ValueError(f"tokens={tokens} is not possible; give 0, or how many fit a pass")
        if lora < 0:
            raise ValueError(f"lora={lora} is not possible; give a rank, or 0 to train everything")
        self.name, self.tokens, self.lora, self.apart = name, tokens, lora, apart
        self.body = _open(self.library_class, name, _TYPES[weights], device_map)
        if "image" not in self.body.modalities:
            raise ValueError(
                f"{name} reads {', '.join(map(str, self.body.modalities))} and no pictures; give a "
                "model of sentence-transformers that reads pictures and texts"
            )
        self.body.eval()
        self._check()
        if lora:
            self.body.requires_grad_(False)
            add_lora(self.body.transformers_model, lora, ATTENTION)  # in place

    @abstractmethod
    def _check(self) -> None:
        """Refuse a model of the library that scores in another way."""

    @property
    def config_json(self) -> str:
        """Settings of the modules and of the preprocessing, which the weights do not show."""
        return json.dumps(_settings(self._folder), sort_keys=True)

    def merge(self) -> None:
        """Merge the adapters into the weights and remove them."""
        if self.lora:
            merge_lora(self.body)
            self.lora = 0

    def adopted(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict to load, from the same model with or without adapters."""
        return lora_state(self.state_dict(), state) if self.lora else dict(state)

    def write_files(self, folder: Path) -> None:
        """Write what the constructor reads, without the large weights."""
        copy_settings(self._folder, folder)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        # a device map has placed it
        if self.body._placement_is_delegated:
            return self
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    @cached_property
    def _folder(self) -> Path:
        return local_folder(self.name)

    def _outputs(self, inputs: Sequence[Any], task: str | None) -> list[dict[str, Any]]:
        """Run the model, in halves where the padded tokens exceed those of a pass."""
        features = self.body.preprocess(inputs, prompt=self._prompt(task), task=task)
        most = self.tokens or tokens_at_once(self.body.device)
        if len(inputs) > 1 and not torch.is_grad_enabled() and _count(features) > most:
            half = len(inputs) // 2
            return [*self._outputs(inputs[:half], task), *self._outputs(inputs[half:], task)]
        device = self.body.device
        placed = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in features.items()}
        try:
            return [self.body(placed, **({} if task is None else {"task": task}))]
        except (LookupError, AttributeError) as error:  # of names in its files
            raise ValueError(
                f"{self.name} names outputs that its modules do not give: {first_line(error)}"
            ) from error

    def _prompt(self, task: str | None) -> str | None:
        names = {"query": ("query",), "document": ("document", "passage", "corpus")}
        prompts = self.body.prompts
        for name in (*names.get(task or "", ()), self.body.default_prompt_name):
            if name in prompts:
                return str(prompts[name]) or None
        return None


@final
class DenseEmbedder(SentenceTransformersModel, SingleVectorModel):
    """A `SentenceTransformer` of pictures and texts: one vector each, by cosine or inner product.

    CLIP-like models and embedders on models of vision and language (Qwen-VL, jina, ...).
    """

    library_class = "SentenceTransformer"

    def _check(self) -> None:
        kind = self.body.similarity_fn_name
        self.normalise = (kind == "cosine", kind == "cosine")
        if kind not in ("cosine", "dot"):
            raise ValueError(
                f"{self.name} compares vectors by {kind}; cosine and inner product (dot) are "
                "possible"
            )

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode whole pictures (N, 3, S, S) as one vector each."""
        return self._vectors(pictures_of(images), "document")

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode characters (N, L) as one vector each."""
        return self._vectors(captions_of(texts), "query")

    def _vectors(self, inputs: Sequence[Any], task: str) -> Embeddings:
        parts = [out["sentence_embedding"] for out in self._outputs(inputs, task)]
        vectors = single_vector(torch.cat([part[:, : self.body.truncate_dim] for part in parts]))
        vectors = vectors.map(lambda x: x.float() if x.is_floating_point() else x)
        return unit_vectors(vectors) if all(self.normalise) else vectors


@final
class MultiVectorEmbedder(SentenceTransformersModel, MaxSimModel):
    """A `MultiVectorEncoder`: a vector for each token, by MaxSim (ColBERT, PyLate, ColPali, ...).

    A score is the sum, or for "meanmaxsim" the mean, over the tokens of the text of the best inner
    product with a token of the picture.
    """

    library_class = "MultiVectorEncoder"

    def _check(self) -> None:
        self.direction, self.mean = "t2i", self.body.similarity_fn_name == "meanmaxsim"

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode whole pictures (N, 3, S, S) as (N, R, D) vectors."""
        return self._bags(pictures_of(images), "document")

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode characters (N, L) as (N, M, D) vectors."""
        return self._bags(captions_of(texts), "query")

    def patch_grid(self, images: ModalityBatch, vectors: int) -> PatchGrid | None:
        """Return the patches among the vectors of a picture, as the library finds them."""
        from sentence_transformers.multi_vector_encoder.interpretability import get_n_patches

        (picture,) = pictures_of(images)
        prepares = getattr(self.body.processor, "image_processor", None)
        image_token = getattr(self.body.processor, "image_token", None)
        if image_token is None or _crops(prepares) or getattr(prepares, "do_pad", False):
            return None
        try:
            columns, rows = get_n_patches(self.body, picture.size)
        except (ValueError, NotImplementedError, LookupError, TypeError, AttributeError):
            return None  # of models that it does not know
        features = self.body.preprocess([picture], prompt=self._prompt("document"), task="document")
        kept = self._outputs([picture], "document")[0]["attention_mask"][0].bool().cpu()
        token = self.body.tokenizer.convert_tokens_to_ids(image_token)
        if "input_ids" not in features or len(features["input_ids"][0]) != len(kept):
            return None
        places = (features["input_ids"][0].cpu() == token)[kept].nonzero().squeeze(1)
        first = int(places[0]) if len(places) else 0
        if len(places) != rows * columns or int(places[-1]) - first + 1 != len(places):
            return None
        return PatchGrid(rows, columns, first)

    def token_spans(self, captions: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the characters of each vector of a caption; 0, 0 for markers and expansions."""
        from sentence_transformers.multi_vector_encoder.interpretability import (
            real_query_token_slice,
        )

        read = self.body.tokenizer
        if not getattr(read, "is_fast", False):
            raise ValueError(f"the tokenizer of {self.name} has no offsets of its tokens")
        spans = []
        for caption in captions:
            text = caption.strip()
            start = len(caption) - len(caption.lstrip())
            at = real_query_token_slice(self.body, text)
            kept = self._outputs([text], "query")[0]["attention_mask"][0]
            own = read(text, add_special_tokens=False, return_offsets_mapping=True)
            offsets = own["offset_mapping"]
            if len(offsets) != at.stop - at.start or not bool(kept[: at.stop].all()):
                raise ValueError(
                    f"{self.name} reads {text!r} with other tokens than its tokenizer gives it "
                    "alone, so that they cannot be told apart"
                )
            row = [(0, 0)] * int(kept.sum())
            row[at] = [(start + a, start + b) for a, b in offsets]
            spans.append(row)
        return spans

    def _bags(self, inputs: Sequence[Any], task: str) -> Embeddings:
        outputs = self._outputs(inputs, task)
        return Embeddings.cat(
            [_packed(out["token_embeddings"].float(), out["attention_mask"]) for out in outputs]
        )


@final
class CrossEncoderModel(SentenceTransformersModel):
    """A `CrossEncoder` of pairs of a text and a picture: a judge, or a re-ranker.

    A score is the library's before its activation, so that `predict` gives its sigmoid in most
    models. Encodings are the items themselves, which the model reads when it scores: an image's
    vectors are the rows of its picture, a text's its characters.
    """

    library_class = "CrossEncoder"

    @property
    def score_name(self) -> str:
        return "logit of a cross-encoder"

    def _check(self) -> None:
        if self.body.num_labels != 1:
            raise ValueError(
                f"{self.name} gives {self.body.num_labels} numbers for a pair; a judge gives one"
            )

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Return whole pictures (N, 3, S, S) as (N, S, 3 S + 2) bytes: rows, and their width."""
        n, _, high, wide = images.values.shape
        sides = _sides(images)
        width = torch.stack([sides[:, 0] // 256, sides[:, 0] % 256], 1).byte()
        rows = images.values.transpose(1, 2).reshape(n, high, 3 * wide)
        rows = torch.cat([rows, width[:, None].expand(n, high, 2)], 2)
        return Embeddings(rows, torch.arange(high, device=rows.device) < sides[:, 1:])

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Return characters (N, L) as (N, L, 1) numbers."""
        return Embeddings(texts.values.unsqueeze(-1).float(), texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) scores of image p with text p."""
        captions = captions_of(ModalityBatch(texts.mask[:, 0], texts.tokens[..., 0], texts.mask))
        pairs = list(zip(captions, _pictures_of_rows(images), strict=True))
        if not pairs:
            return texts.tokens.new_zeros(0)
        outputs = self._outputs(pairs, None)
        return torch.cat([out["scores"].float().flatten() for out in outputs])


# Items as the library reads them.


def pictures_of(images: ModalityBatch) -> list[Image.Image]:
    """Return the pictures of a batch of `PixelProcessor.whole`.

    Raises:
        ValueError: the pictures were resized or normalised.
    """
    if images.values.dtype != torch.uint8 or images.boxes is None:
        raise ValueError("this model reads whole pictures; process them with its own processor")
    values = images.values.permute(0, 2, 3, 1).cpu().numpy()
    return [
        Image.fromarray(np.ascontiguousarray(canvas[:high, :wide]))
        for canvas, (wide, high) in zip(values, _sides(images).tolist(), strict=True)
    ]


def captions_of(texts: ModalityBatch) -> list[str]:
    """Return the captions of a batch of characters."""
    rows = zip(texts.values.long().cpu(), texts.mask.cpu(), strict=True)
    return ["".join(map(chr, values[mask].tolist())) for values, mask in rows]


def _sides(images: ModalityBatch) -> Tensor:
    """Return the (N, 2) width and height in pixels."""
    assert images.boxes is not None
    full = images.values.shape[3], images.values.shape[2]
    return (images.boxes[:, 0, 2:] * images.boxes.new_tensor(full)).round().long()


def _pictures_of_rows(images: Embeddings) -> list[Image.Image]:
    """Return the pictures of `CrossEncoderModel.encode_images`."""
    rows, heights = images.tokens.cpu().numpy(), images.mask.sum(1).tolist()
    pictures = []
    for canvas, high in zip(rows, heights, strict=True):
        wide = 256 * int(canvas[0, -2]) + int(canvas[0, -1])
        pixels = canvas[:high, :-2].reshape(high, 3, -1)[:, :, :wide].transpose(0, 2, 1)
        pictures.append(Image.fromarray(np.ascontiguousarray(pixels)))
    return pictures


def _packed(tokens: Tensor, mask: Tensor) -> Embeddings:
    """Move the vectors that count to the left of each item, and cut the rest."""
    mask = mask.bool()
    order = (~mask).long().argsort(dim=1, stable=True)[:, : max(1, int(mask.sum(1).max()))]
    mask = mask.gather(1, order)
    tokens = tokens.gather(1, order.unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
    return Embeddings(tokens.masked_fill(~mask.unsqueeze(-1), 0), mask)


def _crops(prepares: Any) -> bool:
    """Return whether an image processor cuts a part of pictures off."""
    if not getattr(prepares, "do_center_crop", False):
        return False
    size, crop = (dict(getattr(prepares, name) or {}) for name in ("size", "crop_size"))
    return "shortest_edge" in size or size != crop


def _count(features: dict[str, Any]) -> int:
    """Return the tokens of prepared inputs, padding included."""
    ids, pixels = features.get("input_ids"), features.get("pixel_values")
    words = ids.numel() if isinstance(ids, Tensor) else 0
    return max(words, pixels.numel() // PIXELS_OF_TOKEN if isinstance(pixels, Tensor) else 0)


# Folders.


def local_folder(name: str) -> Path:
    """Return the folder of a model, also of one on the hub that was downloaded.

    Raises:
        ValueError: it is not there.
    """
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the files of {name} are not there any more: {first_line(error)}"
        ) from error


def copy_settings(source: Path, folder: Path) -> None:
    """Copy a folder of sentence-transformers, of the backbone without its weights.

    Weights of small modules stay: the library reads them where it builds the module.
    """
    large = {""}
    if (source / MODULES).is_file():
        large |= {path for kind, path in read_modules(source) if kind in _BACKBONES}
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        hidden = any(part.startswith(".") for part in inside.parts)
        if hidden or not path.is_file() or path.name.endswith(_INDEX):
            continue
        parent = "" if inside.parent == Path() else str(inside.parent)
        if path.suffix in _LEFT_OUT and (parent in large or path.suffix != ".safetensors"):
            continue
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / inside)
    for place in large:
        if (folder / place / "config.json").is_file():
            save_file({}, folder / place / WEIGHTS, {"format": "pt"})


def _settings(folder: Path) -> dict[str, Any]:
    """Return the content of the small JSON files and templates."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part[0] == "." for part in Path(name).parts):
            continue
        if path.name.startswith("tokenizer"):  # large
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".jinja":
            found[name] = path.read_text(encoding="utf-8")
        elif path.suffix == ".json" and (path.name != "config.json" or "/" in name):
            plain = read_json(path, "settings of sentence-transformers")
            if isinstance(plain, dict):
                plain = {k: v for k, v in plain.items() if k not in ("__version__", "model_type")}
            found[name] = plain
    return found


def _open(library_class: str, name: str, dtype: object, device_map: str | None) -> Any:
    needs = 'this model needs sentence-transformers: pip install "counterfoil[st]"'
    library = optional_import("sentence_transformers", needs)
    if not hasattr(library, library_class):
        raise ValueError(f"{name} needs sentence-transformers 6.2 or newer; this one is older")
    check_model_folder(local_folder(name), fetches=not Path(name).is_dir())
    options: dict[str, Any] = {"dtype": dtype}
    if device_map is not None:
        options["device_map"] = device_map
    with _quiet():
        try:
            return getattr(library, library_class)(
                name, device="cpu", model_kwargs=options, **hub_options(name)
            )
        except Exception as error:  # libraries raise anything at damaged files
            raise ValueError(
                f"{name} cannot be loaded as a {library_class} of sentence-transformers: "
                f"{first_line(error)}"
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries' progress bars and reports."""
    log = logging.getLogger("sentence_transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with quiet_transformers():
            yield
    finally:
        log.setLevel(level)


def picture_side(kind: type[SentenceTransformersModel], name: str) -> int:
    """Return the longest side of pictures that a model is given: what its own resizing needs."""
    folder, sides = local_folder(name), [0]
    for file in ("processor_config.json", "preprocessor_config.json"):
        settings = read_settings(folder / file)
        settings = settings.get("image_processor", settings)
        for size in (settings.get(key) for key in ("crop_size", "size")):
            plain = size if isinstance(size, dict) else {"height": size or 0}
            sides += [int(plain[key] or 0) for key in _SIDES if key in plain]
    most = LARGEST_KEPT if kind is CrossEncoderModel else LARGEST
    return min(4 * max(sides) or most, most)
