"""A retrieval model with its processor: saved in a folder, opened from a folder or by name."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from counterfoil.card import push_shared, save_shared
from counterfoil.core import distributed, registry
from counterfoil.core.config import Config
from counterfoil.core.config import config as make_config
from counterfoil.core.console import progress, warn
from counterfoil.core.io import (
    ensure_writable_folder,
    files_digest,
    write_array,
    write_json,
)
from counterfoil.core.model_files import check_model_folder
from counterfoil.core.optional import first_line
from counterfoil.core.registry import short_name
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.contents import ContentDigests
from counterfoil.data.corrections import CORRECTIONS_FILE, judged_pairs, write_corrections
from counterfoil.data.dataset import ImageTextDataset, check_dataset
from counterfoil.data.feature_cache import CachedFeatureProcessor
from counterfoil.data.images import decode_picture, open_picture
from counterfoil.data.processor import (
    FeatureProcessor,
    PixelProcessor,
    ProcessedDataset,
    Processor,
)
from counterfoil.data.tokenizers import Tokenizer
from counterfoil.loading import (
    HUB_NAME,
    OPEN_CLIP_CONFIG,
    is_pretrained_folder,
    load_pretrained,
    prefix_of,
)
from counterfoil.models.base import ENCODER, FrozenTower, RetrievalModel, SingleVectorModel, Weights
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.library_folders import encoder_folder
from counterfoil.saved import CARD, OWN_FILES, SavedModelCard, holds_pretrained, open_saved
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.embedding_store import (
    ModelSource,
    cached_vectors,
    model_digest,
    model_on_vectors,
    write_vectors,
)
from counterfoil.scoring.encode import (
    EmbeddedDataset,
    encode_images,
    encode_texts,
    is_inner_product,
)

if TYPE_CHECKING:
    from counterfoil.data.own import Preprocess, Tokenize

VECTORS = "vectors"
_TRIAL = 8  # images and texts whose scores say how a model compares
MODEL = "model"
# an image: a path, a PIL image, the bytes of a file, or a (H, W, 3) uint8 array
ImageInput: TypeAlias = str | Path | Image.Image | bytes | NDArray[Any]

# Models on the Hugging Face hub.


_FILES = (CARD, "*.safetensors", "*.json", "pieces/*", f"{ENCODER}/*", "README.md")


def download_model(name: str, *, revision: str | None = None) -> Path | None:
    """Download a model that counterfoil pushed to the hub, or find it in the local cache.

    None if there is no such model, or it is one of another library.
    """
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    if not HUB_NAME.fullmatch(name):
        return None
    if isinstance(try_to_load_from_cache(name, "config.json"), str):  # another library's model
        return None
    try:
        hf_hub_download(name, CARD, revision=revision)
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{name} cannot be loaded as a Hugging Face model: it is no folder here, and the hub "
            "cannot be reached; give a folder with config.json and weights, or go online"
        ) from error
    except (OSError, EntryNotFoundError, HFValidationError):  # no model, or another library's
        return None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except OSError as error:
        raise ValueError(f"{name} cannot be downloaded: {first_line(error)}") from error


# The identity of a model: what its vectors and scores depend on, wherever it is stored.


# arguments of a pretrained part: where it came from, and how it is loaded
_SOURCES = ("name", "config", "pretrained", "device_map", "tokens")


def identity_of(
    model: RetrievalModel, spec: Config[RetrievalModel] | None, processor: Processor | None
) -> str:
    """Sixteen hex digits of all that the vectors and scores of a model depend on.

    They depend on weights, architecture and preprocessing; a copy in another folder is the same
    model.
    """
    digest = hashlib.sha256(model_digest(model).encode())
    if spec is not None:
        digest.update(json.dumps(_call(spec), sort_keys=True).encode())
    if processor is not None:
        digest.update(repr(processor.image_processor).encode())
        digest.update((processor.tokenizer.digest if processor.tokenizer else "").encode())
    return digest.hexdigest()[:16]


def _call(value: Any) -> Any:
    """A call without its defaults and the sources of pretrained parts, which the weights cover."""
    match value:
        case Config():
            known = inspect.signature(value.make).parameters
            pretrained = {"config", "pretrained"} <= known.keys() or hasattr(value.make, OWN_FILES)
            arguments = {
                name: _call(argument)
                for name, argument in value.arguments.items()
                if not (pretrained and name in _SOURCES) and argument != known[name].default
            }
            return {"call": short_name(value.make), **arguments}
        case tuple() | list():
            return [_call(inner) for inner in value]
    return value


def cache_frozen_tower(model: RetrievalModel, processor: Processor) -> Processor:
    """A processor that caches outputs of a frozen image tower on disk, if the model has one."""
    towers = [part for part in model.modules() if isinstance(part, FrozenTower) and part.cache_key]
    if (
        len(towers) != 1
        or not isinstance(processor.image_processor, PixelProcessor)
        or processor.image_processor.divisor
        or processor.image_processor.whole
    ):
        return processor
    (tower,) = towers

    def states(images: ModalityBatch) -> Tensor:
        tower.body.to(distributed.device()).eval()
        with torch.inference_mode():
            return tower.states(images.to(distributed.device())).cpu()

    key = f"{model_digest(tower.body)} {tower.cache_key}"
    return Processor(
        CachedFeatureProcessor(processor.image_processor, states, key), processor.tokenizer
    )


Items: TypeAlias = Sequence[ImageInput] | Iterable[ImageInput]
_TOGETHER = {str: 256, Image.Image: 32}  # captions, and pictures, that are encoded together


def _as_items(items: ImageInput | Items) -> Items:
    """Several items, also of a single one; an array of four axes is a list of images."""
    if isinstance(items, np.ndarray):
        return [items] if items.ndim < 4 else list(items)
    return [items] if isinstance(items, str | Path | Image.Image | bytes) else items


def _as_pictures(images: ImageInput | Items) -> Items:
    """The same, with every string a path."""
    pictures = (Path(item) if isinstance(item, str) else item for item in _as_items(images))
    return list(pictures) if isinstance(images, Sequence) else pictures


def _no_progress(more: int) -> None:
    """Show nothing."""


def _check_kind(items: Iterable[ImageInput], kind: type) -> None:
    """Refuse captions among pictures, and pictures among captions."""
    if any(isinstance(item, str) != (kind is str) for item in items):
        raise ValueError("give captions (str) or pictures (paths or PIL images), not both")


def open_image(item: Path | Image.Image | bytes | NDArray[Any]) -> Image.Image:
    """An image in RGB."""
    match item:
        case Image.Image():
            return item
        case Path():
            return open_picture(item)
        case bytes():
            return decode_picture(BytesIO(item), f"an image of {len(item):,} bytes")
        case np.ndarray() if item.dtype == np.uint8 and (item.ndim, item.shape[-1:]) == (3, (3,)):
            return Image.fromarray(item)
        case np.ndarray():
            raise ValueError(
                f"an array of shape {item.shape} and type {item.dtype} is no image; give "
                "(height, width, 3) of uint8, or a PIL image"
            )
    raise ValueError(
        f"{type(item).__name__} is neither a caption nor an image; give a str, a path, a PIL "
        "image, bytes or an array"
    )


@final
@dataclass(frozen=True, eq=False, repr=False, init=False)
class Model:
    """A retrieval model with its processor: encodes and compares images and texts.

    `load_model` opens one. Any torch module becomes one as ``Model(module, preprocess=…,
    tokenize=…)``: it has ``encode_image`` and ``encode_text``, or scores pairs, see
    `counterfoil.models.own.as_retrieval_model`. The functions are never saved, so a folder of such
    a model opens by a registered factory, or as ``load_model(folder, into=Model(module, …))``.

    Args:
        model: a `RetrievalModel`, or any module; it stays on its device.
        processor: counterfoil's own, in place of the two functions; None for ready-made vectors.
        name: of the model. Of one with functions it also names these, and has to change with them:
            without it nothing that they make is kept on disk, as in an index.
        spec: the call that builds it.
        card: where it was saved by counterfoil.
        preprocess: turns an RGB picture into a tensor, of one shape for all; None for features of
            the data.
        tokenize: turns a list of captions into (N, L) ids, N lists of ids, or a mapping with
            input_ids and attention_mask; None for vectors of the data.

    Attributes:
        model: the `RetrievalModel`, a torch module.
        processor: turns images and texts into its input; None for ready-made vectors.
        name: the name or folder it was loaded from.
        spec: the call that builds it; None where nothing says how.
        card: provenance and metrics, where it was saved by counterfoil.

    Raises:
        TypeError: the model is no module, or a function cannot be called.
        ValueError: the module has no encoders and scores no pairs, or a processor and functions
            are given.
    """

    model: RetrievalModel
    processor: Processor | None
    name: str
    spec: Config[Any] | None
    card: SavedModelCard | None

    def __init__(
        self,
        model: nn.Module,
        processor: Processor | None = None,
        name: str = "",
        spec: Config[Any] | None = None,
        card: SavedModelCard | None = None,
        *,
        preprocess: Preprocess | None = None,
        tokenize: Tokenize | Tokenizer | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"Model takes a torch module, not {model!r:.80}; a name or folder is opened by "
                "cf.load_model"
            )
        functions = {"preprocess": preprocess, "tokenize": tokenize}
        given = [key for key, function in functions.items() if function is not None]
        for key in given:
            if not (callable(functions[key]) or isinstance(functions[key], Tokenizer)):
                raise TypeError(f"{key} is {functions[key]!r:.80}; give a function")
        if given and processor is not None:
            raise ValueError(f"both processor and {given[0]} are given; leave one of them out")
        if given or not (processor or isinstance(model, RetrievalModel)):
            from counterfoil.data.own import own_processor

            processor = own_processor(preprocess, tokenize, name)
        if not isinstance(model, RetrievalModel):
            from counterfoil.models.own import as_retrieval_model

            model = as_retrieval_model(model)
        values = {
            "model": model,
            "processor": processor,
            "name": name or type(model.own_module).__name__,
            "spec": spec,
            "card": card,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def reads_pixels(self) -> bool:
        """True if it encodes images from their pixels."""
        return self.processor is not None and self.processor.image_processor.reads_pixels

    @property
    def reads_features(self) -> bool:
        """True if it encodes images from stored features."""
        return self.processor is not None and self.processor.image_processor.reads_features

    def process(self, dataset: ImageTextDataset) -> ProcessedDataset:
        """The data set as input of the model; a frozen part's outputs are cached on disk."""
        if self.processor is not None:
            if isinstance(self.model, FrozenWithAdapters):
                return model_on_vectors(self.model.body, self.processor.process(dataset))
            return cache_frozen_tower(self.model, self.processor).process(dataset)
        if dataset.features is None:
            raise ValueError(f"{dataset.name} has no vectors of images to compare")
        return Processor(FeatureProcessor(dataset.features.width), None).process(dataset)

    def embed(self, dataset: ImageTextDataset, *, keep_pixels: bool = True) -> EmbeddedDataset:
        """Encode all images and texts of a data set.

        Args:
            dataset: the data set.
            keep_pixels: whether the pixels of pictures are cached on disk, for another pass.

        Raises:
            TypeError: it is no data set.
            ValueError: it has no images or no texts.
        """
        check_dataset(dataset)
        dataset.check_captions("to rank")
        if not len(dataset):
            raise ValueError(
                f"{dataset.name} ({dataset.split_name}) has {len(dataset)} images and "
                f"{len(dataset.texts)} texts; at least one of each is needed"
            )
        inputs, size = self.process(dataset), len(dataset)
        cached = cached_vectors(self.model, inputs) if self.model.keeps_vectors else None
        if isinstance(self.model, EmbeddingModel) and not any(self.model.normalise):
            cached = _stored_vectors(dataset)
        images, texts = cached or (
            encode_images(self.model, inputs.images if keep_pixels else inputs.images_once, size),
            encode_texts(self.model, inputs.texts, len(dataset.texts)),
        )
        return EmbeddedDataset(self.model, images, texts)

    def write_vectors(
        self, dataset: ImageTextDataset, folder: str | Path, *, workers: int = 0
    ) -> ImageTextDataset:
        """Encode a data set into a folder of vectors, a data set for the model "vectors".

        What a run that was stopped has encoded is kept: call it again to continue.

        Args:
            dataset: the data set, with pictures.
            folder: to write.
            workers: threads that decode pictures; 0 for none but this one.

        Returns:
            The data set of the vectors, with the ids and the captions of the data, so that lists
            that are mined with the vectors are lists of the data.

        Raises:
            ValueError: the model does not compare one vector of an item by cosine or inner product,
                or the folder was begun with another model or data set.
        """
        from counterfoil.data.readers import load_dataset

        self.check_named("a folder of vectors")
        folder = Path(folder)
        ensure_writable_folder(folder)
        facts = {
            "model": self.identity(),
            "data": dataset.fingerprint,
            "contents": asdict(ContentDigests.of(dataset)),
        }
        inputs = self.process(dataset)
        self._check_vectors(inputs)
        write_vectors(folder, self.model, inputs, facts, workers=workers)
        if distributed.rank() == 0:
            write_array(folder / "owner.npy", dataset.text_to_image.numpy())
            for name in ("image_ids", "text_ids", "splits"):
                write_json(folder / f"{name}.json", list(getattr(dataset, name)))
            write_json(folder / "captions.json", list(dataset.texts))
            corrections = folder / CORRECTIONS_FILE
            if (judged := judged_pairs(dataset)) and not corrections.exists():
                write_corrections(corrections, judged)  # later judgements of the vectors stay
        distributed.barrier()
        return load_dataset(folder)

    def _check_vectors(self, inputs: ProcessedDataset) -> None:
        """Refuse to write vectors that the model "vectors" would not score as this one does."""
        if not self._compares_vectors(inputs):
            raise ValueError(
                f"the score of {self.name} ({self.model.score_name}) is no inner product of one "
                "vector of an image and one of a caption, so its vectors alone would rank "
                "otherwise; evaluate, mine and re-rank with the model itself"
            )
        if self.model.score_name != "cosine":
            warn(
                f"{self.name} compares by {self.model.score_name}: open its vectors with the model "
                f"{VECTORS}:inner-product, since {VECTORS} takes the cosine"
            )

    def _compares_vectors(self, inputs: ProcessedDataset) -> bool:
        """Whether a score is an inner product of two vectors, tried where its name does not say."""
        if isinstance(self.model, SingleVectorModel):
            return self.model.score_name in ("cosine", "inner product")
        counts = min(_TRIAL, len(inputs.dataset)), min(_TRIAL, len(inputs.dataset.texts))
        images = encode_images(self.model, inputs.images_once, counts[0])
        texts = encode_texts(self.model, inputs.texts, counts[1]) if counts[1] else images
        return is_inner_product(self.model, images, texts)

    @torch.inference_mode()
    def encode(self, items: ImageInput | Items) -> Embeddings:
        """Encode captions (str), or images (all of `ImageInput` but str), as bags of vectors.

        Batch after batch: pictures are opened and prepared with their batch, and then forgotten.

        Args:
            items: a list of captions or of images, or a generator of them, or a single one.

        Raises:
            ValueError: nothing or a mixture was given, or the model reads stored features only.
        """
        return Embeddings.cat(list(self._encoded(_as_items(items))))

    def _encoded(self, items: Items) -> Iterator[Embeddings]:
        """Yield the encodings of the items, a batch at a time."""
        if self.processor is None:
            raise ValueError("ready-made vectors have no encoder; give a model folder or name")
        remaining = iter(items)
        first = next(remaining, None)
        if first is None:
            raise ValueError("nothing was given; give captions (str) or pictures, one or more")
        kind = str if isinstance(first, str) else Image.Image
        if isinstance(items, Sequence):  # refused before the work, not in the midst of it
            _check_kind(items, kind)
        if any(part.training for part in self.model.modules()):  # `eval` is slow: only if needed
            self.model.eval()
        remaining, size = chain([first], remaining), _TOGETHER[kind]
        total = len(items) if isinstance(items, Sequence) else 0
        label = "texts encoded" if kind is str else "images encoded"
        with progress(label, total) if total > size else nullcontext(_no_progress) as advance:
            while batch := list(islice(remaining, size)):
                yield self._encode_batch(batch, kind)
                advance(len(batch))

    def _encode_batch(self, batch: Sequence[ImageInput], kind: type) -> Embeddings:
        assert self.processor is not None
        _check_kind(batch, kind)
        weight = next(self.model.parameters(), None)
        device = torch.device("cpu") if weight is None else weight.device
        if kind is str:
            captions = [item for item in batch if isinstance(item, str)]
            return self.model.encode_texts(self.processor.process_texts(captions).to(device))
        pictures = [open_image(item) for item in batch if not isinstance(item, str)]
        return self.model.encode_images(self.processor.process_images(pictures).to(device))

    def similarity(
        self, images: ImageInput | Items, texts: str | Iterable[str]
    ) -> NDArray[np.float32]:
        """Score every image against every text.

        Args:
            images: a path (str or `Path`), a PIL image, the bytes of an image file, a (H, W, 3)
                uint8 array, or a list of them.
            texts: a caption, or a list of them.

        Returns:
            (I, T) float32; higher is better. Scores of two models are not comparable.

        Raises:
            ValueError: a list is empty, an image cannot be read, or the model takes features
                instead of pixels.
        """
        with torch.inference_mode():
            encoded = self.encode(self._captions(texts))
            rows = [
                self.model.score_matrix(part, encoded).float().cpu().numpy()
                for part in self._encoded(_as_pictures(images))
            ]
        return np.concatenate(rows).astype(np.float32, copy=False)

    def score(self, image: ImageInput, captions: str | Iterable[str]) -> Tensor:
        """(N,) scores of captions for one image: a row of `similarity`, as a tensor."""
        return torch.from_numpy(self.similarity(image, captions)[0])

    def encode_images(self, images: ImageInput | Items) -> NDArray[np.float32]:
        """(I, D) embeddings of images, for a model with one vector per item.

        Raises:
            ValueError: as `similarity`, or the model makes several vectors of an item.
        """
        return self._single_vectors(_as_pictures(images))

    def encode_texts(self, texts: str | Iterable[str]) -> NDArray[np.float32]:
        """(T, D) embeddings of texts, for a model with one vector per item.

        Raises:
            ValueError: as `similarity`, or the model makes several vectors of an item.
        """
        return self._single_vectors(self._captions(texts))

    def _captions(self, texts: str | Iterable[str]) -> list[str]:
        listed = [texts] if isinstance(texts, str | Path | Image.Image) else list(texts)
        if other := [text for text in listed if not isinstance(text, str)]:
            raise ValueError(f"a text is a str, not {type(other[0]).__name__}: {other[0]!r}")
        return listed

    @torch.inference_mode()
    def _single_vectors(self, items: Items) -> NDArray[np.float32]:
        parts = []
        for encoded in self._encoded(items):
            if encoded.tokens.shape[1] != 1:
                raise ValueError(
                    f"{self.name} makes several vectors of an item; `encode` returns them all with "
                    "their mask, `similarity` compares them"
                )
            parts.append(encoded.tokens[:, 0].float().cpu().numpy())
        return np.concatenate(parts).astype(np.float32, copy=False)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        lines = [
            f"Model({self.name!r}): {type(self.model.own_module).__name__}, "
            f"{parameters:,} parameters",
            f"  reads {_describe_processor(self.processor)}",
        ]
        if self.card is not None:
            lines.append("  " + "; ".join(self.card.facts))
        elif self.processor is not None:
            known = self.spec is not None and holds_pretrained(self.spec)
            lines.append("  pretrained" if known else "  built here, not saved yet")
        lines.append(f"  score: {self.model.score_name}")
        return "\n".join(lines)

    @staticmethod
    def from_pretrained(name: str | Path, *, revision: str | None = None) -> Model:
        """Open a saved or pretrained model; see `load_model`."""
        return load_model(name, revision=revision)

    def save_pretrained(self, folder: str | Path, *, evaluations: Sequence[Path] = ()) -> None:
        """Write a self-contained model folder with a card; see `counterfoil.card.save_shared`.

        Args:
            folder: to write; must not exist yet, or be empty.
            evaluations: files that ``counterfoil evaluate --json`` wrote, for the card.

        Raises:
            ValueError: the folder is not empty, the model is ready-made vectors, or a file is no
                evaluation.
        """
        save_shared(self, Path(folder), evaluations=evaluations)

    def push_to_hub(
        self,
        name: str,
        *,
        evaluations: Sequence[Path] = (),
        private: bool = True,
        message: str = "A model of counterfoil",
    ) -> str:
        """Upload the model to the Hugging Face hub and return its address.

        Args:
            name: as in "user/model"; an existing model gets a new version.
            evaluations: files that ``counterfoil evaluate --json`` wrote, for the card.
            private: whether a new repository is private.
            message: of the commit.

        Raises:
            ValueError: the hub refuses it, the model is ready-made vectors, or a file is no
                evaluation.
        """
        return push_shared(self, name, evaluations=evaluations, private=private, message=message)

    def check_named(self, work: str) -> None:
        """Refuse a model whose functions have no name for work that keeps what they made.

        Raises:
            ValueError: so; `work` says what is kept, as in "an index".
        """
        if self.processor is not None and self.processor.named == "":
            raise ValueError(
                f"{work} keeps what preprocess and tokenize of {self.name} make, and they have no "
                'name by which it would be known again; give one, cf.Model(…, name="mine-v1"), '
                "and another when they change"
            )

    def source(self) -> ModelSource:
        """Digests that the manifest of mined negatives stores."""
        return ModelSource(
            matcher=repr(self.spec) if self.spec else self.name,
            spec=self.spec.digest() if self.spec else "",
            checkpoint=self.digest(),
            identity=self.identity(),
            score=self.model.score_name,
        )

    def identity(self) -> str:
        """Sixteen hex digits of weights, architecture and preprocessing; see `identity_of`."""
        return identity_of(self.model, self.spec, self.processor)

    def digest(self) -> str:
        """Sixteen hex digits of the weights."""
        return weights_digest(self.model)


def _describe_processor(processor: Processor | None) -> str:
    if processor is None:
        return "ready-made vectors"
    images, tokenizer = processor.image_processor, processor.tokenizer
    if isinstance(images, PixelProcessor) and images.whole:
        return f"{images.title}, and captions, which its library prepares"
    return f"{images.title}; texts " + (f"by {tokenizer.title}" if tokenizer else "as vectors")


def model_identity(name: str | Path) -> str:
    """Sixteen hex digits of the files of a model folder; the name of a model without a folder."""
    folder = _model_folder(Path(name))
    return str(name) if folder is None else files_digest(folder)


def as_model(model: object) -> Model:
    """The model itself, or that of a name or a folder, or one around a module of torch.

    Raises:
        TypeError: it is none of these.
        ValueError: as in `load_model` and `Model`.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return load_model(model)
    if isinstance(model, nn.Module):
        return Model(model)
    raise TypeError(
        f"{model!r:.80} is no model; give what cf.load_model(NAME) or cf.Model(module, …) returns"
    )


def as_models(models: object) -> list[Model]:
    """The models of one, or of a list or tuple of several; each as in `as_model`."""
    return [as_model(model) for model in (models if isinstance(models, list | tuple) else [models])]


def load_model(
    name: str | Path | Config[Any],
    *,
    into: nn.Module | Model | None = None,
    revision: str | None = None,
    long_captions: bool = False,
    weights: Weights = "stored",
    device_map: str | None = None,
    tokens: int = 0,
) -> Model:
    """Open a saved or pretrained model.

    Args:
        name: a model folder, a training stage's folder, the name of a model that was pushed to the
            hub, the name or folder of a Hugging Face CLIP, SigLIP, ViLT or BLIP-ITM, the folder of
            any model of sentence-transformers that reads pictures and texts (dense, multi-vector or
            cross-encoder), ``open_clip:`` and a name or folder that open_clip
            knows, two towers to be trained as in ``timm:resnet50+bert-base-uncased``, or "vectors"
            for data sets that are ready-made embeddings, which compares them by cosine, or by
            inner product as "vectors:inner-product"; also the name of a registered factory, a
            function that returns a `Model`, or the call of one, ``cf.config(factory, width=8)``.
        into: for a folder of a model that nothing else opens: one that is built as it was built for
            training. Its weights become those of the folder.
        revision: of a model that was pushed to the hub; None for the newest.
        long_captions: stretch the text positions of a pretrained CLIP, from 77 tokens to 248, so
            that it can be trained on long captions, see `counterfoil.models.layers.positions`.
        weights: of a model of sentence-transformers: "bf16", "fp32", or "stored" as on disk.
        device_map: of such a model: how it is placed on several devices, such as "auto".
        tokens: of such a model: those of a pass, padding included; 0 for what suits the device.

    Raises:
        ValueError: it is none of these, or damaged, or of another kind than an option is for.
    """
    large = {"weights": weights, "device_map": device_map, "tokens": tokens}
    options: dict[str, Any] = {k: v for k, v in large.items() if v not in ("stored", None, 0)}
    if isinstance(name, Config):
        return _build_registered(name)
    if into is not None:
        return _load_into(Path(name), into)
    if not isinstance(name, str | Path):
        raise TypeError(
            f"a model is opened by its name or folder, not by {name!r:.80}; a torch module becomes "
            "a model as cf.Model(module, preprocess=…, tokenize=…)"
        )
    if str(name) in registry.added("model"):
        return _build_registered(Config(registry.find("model", str(name)), {}))
    if options:
        return _load_pretrained(str(name), options)
    if long_captions:
        return _load_long(str(name))
    if str(name).partition(":")[0] == VECTORS:
        return _load_vectors(str(name))
    if prefix_of(str(name)):
        return _load_pretrained(str(name))
    if str(name).endswith("/") and not Path(name).exists():  # no name on the hub ends so
        raise ValueError(f"{name} does not exist; give the folder of a model, or a name on the hub")
    folder = _model_folder(Path(name)) or download_model(str(name), revision=revision)
    if folder is None and revision:
        raise ValueError(
            f"{name} at revision {revision!r} is no model that was pushed to the hub by counterfoil"
        )
    if folder is None or not (folder / CARD).is_file():
        return _load_pretrained(str(folder or name))
    model, processor, card = open_saved(folder)
    return Model(model.to(distributed.device()), processor, str(name), card.model, card)


def _build_registered(spec: Config[Any]) -> Model:
    """The model of a call of a registered factory; random weights are the same at each opening."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = spec.build()
    except TypeError as error:
        raise ValueError(
            f"{spec!r} cannot be called: {error}; give its arguments, "
            "cf.load_model(cf.config(factory, width=…))"
        ) from error
    if not isinstance(model, Model):
        raise ValueError(
            f"{spec!r} makes a {type(model).__name__}; a factory of models returns "
            "cf.Model(module, preprocess=…, tokenize=…)"
        )
    return replace(model, name=short_name(spec.make), spec=spec)


def _load_into(name: Path, into: nn.Module | Model) -> Model:
    """A model folder in a model that the user has built."""
    folder = _model_folder(name)
    if folder is None or not (folder / CARD).is_file():
        raise ValueError(f"{name} is no folder of a model that counterfoil saved")
    given = into if isinstance(into, Model) else Model(into)
    functions = given.processor if isinstance(into, Model) else None
    model, processor, card = open_saved(folder, into=given.model, processor=functions)
    return replace(given, model=model, processor=processor, name=str(name), card=card)


def _load_vectors(name: str) -> Model:
    """The model of ready-made vectors; by inner product where its name says so."""
    score = name.removeprefix(VECTORS).removeprefix(":") or "cosine"
    if score not in ("cosine", "inner-product"):
        raise ValueError(
            f"{name} is no way to compare ready-made vectors; give {VECTORS} for cosines, or "
            f"{VECTORS}:inner-product"
        )
    spec = make_config(EmbeddingModel, normalise=score == "cosine")
    return Model(spec.build(), None, name, spec)


def _stored_vectors(dataset: ImageTextDataset) -> tuple[Embeddings, Embeddings] | None:
    """Ready-made vectors as they lie in their files, which may be larger than memory.

    None where the files hold something else: then they are encoded as the inputs of any model.
    """
    found = []
    for features in (dataset.features, dataset.text_features):
        tokens = features.mapped() if features is not None and features.regions == 1 else None
        if tokens is None:
            return None
        found.append(Embeddings(tokens, torch.ones(len(tokens), 1, dtype=torch.bool)))
    images, texts = found
    return images, texts


def is_model_folder(path: Path) -> bool:
    """Return True if a folder holds a model of ours, or is a training stage's folder."""
    return any((folder / CARD).is_file() for folder in (path, path / MODEL))


def _models_inside(path: Path) -> list[Path]:
    """Models in the folders of a run."""
    return [folder for folder in sorted(path.iterdir()) if is_model_folder(folder)]


def _model_folder(path: Path) -> Path | None:
    """The folder of a model's files; None if the name is not that of a folder."""
    for folder in (path, path / MODEL):
        if (folder / CARD).is_file():
            check_model_folder(folder)
            return folder
    if not path.is_dir():
        _check_path(path)
        return None
    if (inner := encoder_folder(path)) != path:
        return inner
    if not is_pretrained_folder(path):
        if inside := _models_inside(path):
            listed = ", ".join(map(str, inside))
            raise ValueError(f"{path} is a folder of several models; name one of them: {listed}")
        raise ValueError(
            f"{path} holds no model: neither {CARD} nor a Hugging Face config.json nor open_clip's "
            f"{OPEN_CLIP_CONFIG} is there; was its training finished?"
        )
    return path


def _check_path(path: Path) -> None:
    """Refuse what can only be meant as a folder of a model, and is none."""
    if prefix_of(str(path)):
        return  # whose tags and towers may have slashes
    inside = _models_inside(path.parent) if path.parent.is_dir() and path.parent.name else []
    near = difflib.get_close_matches(str(path), list(map(str, inside)), 1)
    if near or len(path.parts) > 2 or path.is_absolute():  # else it may be a name on the hub
        listed = ", ".join(map(str, inside)) or "none"
        hint = f"did you mean {near[0]}? " if near else "give the folder of a model; "
        raise ValueError(f"{path} does not exist; {hint}models in {path.parent}: {listed}")


def _load_long(name: str) -> Model:
    """A pretrained CLIP with stretched text positions."""
    folder = None if prefix_of(name) else _model_folder(Path(name))
    if folder is not None and (folder / CARD).is_file():
        raise ValueError(
            f"{name} is saved with the text positions that it was trained with; leave "
            "long_captions out, or name the pretrained CLIP that it began with"
        )
    return _load_pretrained(str(folder or name), {"long_captions": True})


def _load_pretrained(name: str, options: Mapping[str, Any] | None = None) -> Model:
    """A model of another library; random weights are the same at each opening."""
    found = load_pretrained(name, **(options or {}))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = found.build()
    if found.untrained:
        warn(f"{name}: some of its weights are random; train it before use")
    return Model(model.to(distributed.device()).eval(), found.processor.made(), name, found.spec)
