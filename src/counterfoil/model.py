"""A model that can be used: opened from a folder, by a Hugging Face name, or ready-made vectors."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.config import Config, config_from_dict, digest, from_data, lazy
from counterfoil.core.config import config as make_config
from counterfoil.core.io import atomic_folder, read_json, write_json
from counterfoil.core.saved_names import short_name
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.feature_cache import CachedFeatureProcessor
from counterfoil.data.processor import (
    FeatureProcessor,
    ImageProcessor,
    PixelProcessor,
    ProcessedDataset,
    Processor,
    ProcessorConfig,
)
from counterfoil.data.tokenizers import WordPieceTokenizer
from counterfoil.models import clip, open_clip
from counterfoil.models.base import FrozenTower, RetrievalModel
from counterfoil.models.clip import DualEncoder, longest_text
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.layers.pretrained import (
    PREFIX,
    BertTextTower,
    PictureFormat,
    TimmTower,
    config_of,
    encoder_folder,
    picture_format,
    timm_format,
)
from counterfoil.models.open_clip import CONFIG, OpenClipModel
from counterfoil.models.open_clip import PREFIX as OPEN_CLIP
from counterfoil.models.vsepp import VSEPP
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.embedding_store import (
    Source,
    cached_vectors,
    model_digest,
    model_on_vectors,
)
from counterfoil.scoring.encode import EmbeddedDataset, encode_images, encode_texts

# A finished model in a folder: weights, how to build it, what it sees, and where it came from.
#
# ``model.safetensors`` holds the weights, ``model.json`` the written call that builds the model
# with
# its provenance and figures, ``lens.json`` and the tokenizer's files what it sees.


WEIGHTS, CARD = "model.safetensors", "model.json"
_KIND = "counterfoil model"
FORMAT = 2  # of model.json; format 1, of version 0.1, named classes by their modules
_READ = (1, FORMAT)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModelCard:
    """What is known about a finished model.

    Attributes:
        model: the written call that builds it.
        provenance: JSON-ready facts: the recipe, the data, the seed, the machine.
        metrics: figures by name.
        version: of counterfoil when it was saved.
        tokenizer: digest of the tokenizer; None where there is none, or it was not noted.
    """

    model: Config[RetrievalModel]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: str = ""
    tokenizer: str | None = None


@final
@dataclass(frozen=True, slots=True)
class SavedModel:
    """An opened model folder.

    Attributes:
        model: the model, in evaluation mode.
        processor: what it sees.
        card: what is known about it.
    """

    model: RetrievalModel
    processor: Processor
    card: SavedModelCard


def save_model(
    folder: Path,
    *,
    spec: Config[RetrievalModel],
    model: RetrievalModel,
    processor: Processor,
    provenance: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write a model folder, whole or not at all; one that stands there is replaced.

    Args:
        folder: where.
        spec: the call that builds the model, without late values.
        model: the model.
        processor: what it sees.
        provenance: JSON-ready facts about where it came from.
        metrics: figures by name.
    """
    card = {
        "kind": _KIND,
        "format": FORMAT,
        "version": __version__,
        "model": spec.to_dict(),
        "provenance": dict(provenance or {}),
        "metrics": dict(metrics or {}),
        "tokenizer": processor.tokenizer.digest if processor.tokenizer else None,
    }
    with atomic_folder(folder) as temporary:
        write_tensors(temporary / WEIGHTS, model.state_dict(), {"model": spec.digest()})
        write_json(temporary / CARD, card)
        processor.save(temporary)


def load_saved_model(
    folder: Path, *, device: torch.device | str = "cpu", allow: tuple[str, ...] = ("counterfoil",)
) -> SavedModel:
    """Open a model folder; nothing in it is executed but the constructors of modules.

    Args:
        folder: what `save_model` wrote.
        device: where the model is to be.
        allow: packages whose modules the folder may name.

    Raises:
        ValueError: it is no model folder, is damaged, or comes from another version.
    """
    plain = _read_plain(folder)
    card = _card(plain, folder, allow)
    weights, about = read_tensors(folder / WEIGHTS, "the weights of a model")
    if about.get("model") != digest(plain["model"]):  # as written: 0.1 had other names
        raise ValueError(f"{folder / WEIGHTS} and {folder / CARD} belong to different models")
    model = _built(card.model, folder / CARD)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{folder / WEIGHTS} does not fit the model of {folder / CARD} in this version of "
            f"counterfoil (saved with {card.version}): {first}"
        ) from error
    processor = Processor.open(folder)
    found = processor.tokenizer.digest if processor.tokenizer else None
    if card.tokenizer not in (None, found):
        raise ValueError(f"the tokenizer in {folder} is another one than the model was saved with")
    return SavedModel(model.to(device).eval(), processor, card)


def read_card(folder: Path, *, allow: tuple[str, ...] = ("counterfoil",)) -> SavedModelCard:
    """What is known about the model in a folder.

    Raises:
        ValueError: it is no model folder, or comes from another version.
    """
    return _card(_read_plain(folder), folder, allow)


def _read_plain(folder: Path) -> dict[str, Any]:
    plain = read_json(folder / CARD, "the card of a model")
    if not isinstance(plain, dict) or plain.get("kind") != _KIND:
        raise ValueError(f"{folder / CARD} is not the card of a counterfoil model")
    if plain.get("format") not in _READ:
        raise ValueError(
            f"{folder / CARD} has format {plain.get('format')}, and this version of counterfoil "
            f"reads formats {' and '.join(map(str, _READ))}; open it with the version that wrote it"
        )
    return plain


def _card(plain: Mapping[str, Any], folder: Path, allow: tuple[str, ...]) -> SavedModelCard:
    spec = config_from_dict(plain.get("model"), allow=allow)
    _check_calls(spec, folder / CARD)
    return SavedModelCard(
        model=spec,
        provenance=plain.get("provenance", {}),
        metrics=plain.get("metrics", {}),
        version=str(plain.get("version", "")),
        tokenizer=plain.get("tokenizer"),
    )


def _built(spec: Config[RetrievalModel], path: Path) -> RetrievalModel:
    try:
        return spec.build()
    except TypeError as error:
        raise ValueError(f"{path} does not fit this version of counterfoil: {error}") from error


def _check_calls(spec: Config[Any], path: Path) -> None:
    """A model folder may come from anywhere: it may build modules and do nothing else."""
    if not (isinstance(spec.make, type) and issubclass(spec.make, RetrievalModel)):
        raise ValueError(f"{path} describes {_called(spec)}, which is no matcher")
    for inner in _inner(spec):
        if not (isinstance(inner.make, type) and issubclass(inner.make, nn.Module)):
            raise ValueError(
                f"{path} calls {_called(inner)}, which is no part of a model; the file is refused"
            )


def _called(spec: Config[Any]) -> str:
    return str(getattr(spec.make, "__qualname__", spec.make))


def _inner(value: Any) -> Iterator[Config[Any]]:
    match value:
        case Config():
            yield value
            yield from _inner(value.arguments)
        case Mapping():
            for inside in value.values():
                yield from _inner(inside)
        case tuple() | list():
            for inside in value:
                yield from _inner(inside)


# Models whose sight is frozen look at each picture of a data set once.


def cache_frozen_tower(model: RetrievalModel, processor: Processor) -> Processor:
    """A processor that keeps what the frozen part of a model makes of a data set, where it has
    one.
    """
    parts = [part for part in model.modules() if isinstance(part, FrozenTower) and part.still]
    if (
        len(parts) != 1
        or not isinstance(processor.image_processor, PixelProcessor)
        or processor.image_processor.divisor
    ):
        return processor
    (part,) = parts

    def states(images: ModalityBatch) -> Tensor:
        part.body.to(distributed.device()).eval()
        with torch.inference_mode():
            return part.states(images.to(distributed.device())).cpu()

    key = f"{model_digest(part.body)} {part.still}"
    return Processor(
        CachedFeatureProcessor(processor.image_processor, states, key), processor.tokenizer
    )


# Models of this library on the Hugging Face hub.


FILES = (CARD, "*.safetensors", "*.json", "pieces/*", "README.md")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def download_model(name: str, *, revision: str | None = None) -> Path | None:
    """The folder of a model that somebody pushed, from the hub or from what it once gave.

    Args:
        name: as in "user/model".
        revision: branch, tag or commit; None for the newest.

    Returns:
        None where there is no such model, or it is one of another library.

    Raises:
        ValueError: it cannot be downloaded, or nobody can be asked.
    """
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    others = try_to_load_from_cache(name, "config.json") if _NAME.fullmatch(name) else ""
    if isinstance(others, str):
        return None
    try:
        hf_hub_download(name, CARD, revision=revision)
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{name} cannot be loaded as a Hugging Face model: it is no folder here, and the hub "
            "cannot be asked; give a folder with config.json and weights, or go online"
        ) from error
    except (OSError, EntryNotFoundError, HFValidationError):  # none, or another library's
        return None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except OSError as error:
        raise ValueError(f"{name} cannot be downloaded: {_first(error)}") from error


def upload_model(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Upload a model's folder; its address.

    Raises:
        ValueError: the hub does not take it.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (OSError, HFValidationError) as error:
        raise ValueError(
            f"{name} cannot be pushed to the hub: {_first(error)}; give USER/NAME, and log in with "
            "`hf auth login`"
        ) from error
    return str(address)


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[0].rstrip(". ")


# Telling models apart by what they make of images and texts, not by where they lie.


_SOURCES = ("name", "config", "pretrained")  # where a pretrained part came from


def identity_of(
    model: RetrievalModel, spec: Config[RetrievalModel] | None, processor: Processor | None
) -> str:
    """Sixteen hex digits of all that the vectors and scores of a model depend on.

    Weights, what computes with them, and what the model sees of pictures and captions. A model that
    was saved anew or moved is the same.

    Args:
        model: the model.
        spec: the call that built it, if it is known.
        processor: what it sees; None for ready-made vectors.
    """
    digest = hashlib.sha256(model_digest(model).encode())
    if spec is not None:
        digest.update(json.dumps(_call(spec), sort_keys=True).encode())
    if processor is not None:
        digest.update(_described(processor.image_processor).encode())
        digest.update((processor.tokenizer.digest if processor.tokenizer else "").encode())
    return digest.hexdigest()[:16]


def _described(eye: ImageProcessor) -> str:
    """Settings of an eye, in the words of version 0.1 whatever classes and fields are called today.

    Indices and stores hold this digest: a changed word here would make them another model's.
    """
    if isinstance(eye, FeatureProcessor):
        return f"FeatureEye(width={eye.width!r}, mean={eye.mean!r}, deviation={eye.deviation!r})"
    if isinstance(eye, PixelProcessor):
        square = f"size={eye.size!r}, mean={eye.mean!r}, deviation={eye.deviation!r}"
        shape = f"crop={eye.crop!r}, divisor={eye.divisor!r}, width={eye.width!r}"
        frame = f", frame={eye.frame!r}" if eye.frame else ""
        return f"PixelEye({square}, {shape}{frame})"
    return repr(eye)


def _call(value: Any) -> Any:
    """A written call without its defaults, and without the sources of pretrained parts.

    Their configurations and weights are told by the model itself.
    """
    match value:
        case Config():
            known = inspect.signature(value.make).parameters
            loaded = {"config", "pretrained"} <= known.keys()
            told = {
                name: _call(given)
                for name, given in value.arguments.items()
                if not (loaded and name in _SOURCES) and given != known[name].default
            }
            return {"call": short_name(value.make), **told}
        case tuple() | list():
            return [_call(inner) for inner in value]
    return value


# An image model of timm beside a language model: two towers, each with a head that is trained.


WIDTH = 512
LONGEST = 64  # pieces of a caption


@final
@dataclass(frozen=True, slots=True)
class TimmPretrainedPair:
    """An image model of timm and a language model of Hugging Face.

    Attributes:
        name: as in ``timm:resnet50+bert-base-uncased``.
        drawn: whether a part of its weights is drawn at random: its heads are.

    Raises:
        ValueError: a half is missing.
    """

    name: str
    drawn: bool = True

    def __post_init__(self) -> None:
        if not all(self._halves):
            raise ValueError(
                f"{self.name!r} names no two towers; give an image model of timm and a language "
                f"model, as in '{PREFIX}resnet50+bert-base-uncased'"
            )

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is: two pretrained towers, and heads at random."""
        return self._built(pretrained=True, config=None, trained=True)

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training.

        Args:
            frozen: only the heads are trained.
            lora: rank of adapters.

        Raises:
            ValueError: adapters are wanted.
        """
        if lora:
            raise ValueError(f"{self.name} cannot have adapters; tune it full, or frozen")
        return self._built(
            pretrained=from_data("pretrained"), config=from_data("config"), trained=not frozen
        )

    @property
    def processor(self) -> ProcessorConfig:
        """What it sees: pictures and texts as its towers were pretrained on."""
        image, text = self._halves
        form = timm_format(image)
        return ProcessorConfig(
            images="pixels",
            size=form.size,
            mean=form.mean,
            deviation=form.deviation,
            texts=text,
            longest=min(LONGEST, longest_text(text)),
        )

    @property
    def _halves(self) -> tuple[str, str]:
        image, _, text = self.name.removeprefix(PREFIX).partition("+")
        return image, text

    def _built(self, *, pretrained: Any, config: Any, trained: bool) -> Config[RetrievalModel]:
        image, text = self._halves
        return make_config(
            VSEPP,
            image=lazy(TimmTower, name=image, width=WIDTH, trained=trained, pretrained=pretrained),
            text=lazy(
                BertTextTower,
                name=text,
                width=WIDTH,
                trained=trained,
                pretrained=pretrained,
                config=config,
            ),
            text_pool="mean",
        )


# Pretrained pairs of encoders by name: how each is built, and what it sees.


@final
@dataclass(frozen=True, slots=True)
class PretrainedPair:
    """A pretrained pair of encoders.

    Attributes:
        make: what it is built by.
        name: folder or name.
        form: how it wants its pictures.
        texts: how it reads captions, as `ProcessorConfig` wants it.
        longest: how many tokens it reads.
        width: of its vectors.
        config: what it is built from, where a name alone does not say that.
        drawn: whether a part of its weights is drawn at random.
    """

    make: type[DualEncoder] | type[OpenClipModel]
    name: str
    form: PictureFormat
    texts: str
    longest: int
    width: int
    config: str | None = None
    drawn: bool = False

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""
        if self.config is None:
            return make_config(self.make, name=self.name)
        return make_config(self.make, name=self.name, config=self.config)

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training.

        Args:
            frozen: only adapters behind its vectors are trained.
            lora: rank of adapters on its attention, which alone are trained; 0 for none.
        """
        pretrained, config = from_data("pretrained"), from_data("config")
        if frozen:
            body: RetrievalModel = lazy(
                self.make, name=self.name, pretrained=pretrained, config=config
            )
            return make_config(FrozenWithAdapters, body=body, width=self.width)
        return make_config(
            self.make, name=self.name, pretrained=pretrained, config=config, lora=lora
        )

    @property
    def processor(self) -> ProcessorConfig:
        """What it sees: pictures and texts as it was pretrained on."""
        return ProcessorConfig(
            images="pixels",
            size=self.form.size,
            mean=self.form.mean,
            deviation=self.form.deviation,
            crop=self.form.crop,
            frame=self.form.frame,
            texts=self.texts,
            longest=self.longest,
        )


def pretrained_pair(name: str) -> PretrainedPair | TimmPretrainedPair:
    """The pair of encoders of a name or folder.

    Raises:
        ValueError: there is none, or its library is not installed.
    """
    if name.startswith(PREFIX):
        return TimmPretrainedPair(name)
    if open_clip_pair(name):
        config, place = open_clip.open_clip_config(name), open_clip.open_clip_place(name)
        return PretrainedPair(
            make=OpenClipModel,
            name=name,
            form=open_clip.open_clip_picture_format(name, config),
            texts=f"{open_clip.PREFIX}{place.model}",
            longest=open_clip.open_clip_text_length(config),
            width=open_clip.open_clip_width(config),
            config=config,
            drawn=place.fresh,
        )
    return PretrainedPair(
        make=DualEncoder,
        name=name,
        form=picture_format(name),
        texts=name,
        longest=clip.longest_text(name),
        width=clip.vector_width(name),
    )


def starts_untrained(name: str) -> bool:
    """Whether a part of the weights of this name is drawn at random, so that it has to be trained.

    Raises:
        ValueError: open_clip is asked for, and is not installed or does not know the name.
    """
    if name.startswith(PREFIX):
        return True
    return name.startswith(open_clip.PREFIX) and open_clip.open_clip_place(name).fresh


def open_clip_pair(name: str) -> bool:
    """Whether open_clip is to open it: it is asked to, or nobody else can."""
    if name.startswith(open_clip.PREFIX):
        return True
    folder = Path(name)
    if not (folder / open_clip.CONFIG).is_file():
        return False
    if not (folder / "config.json").is_file():
        return True
    plain = read_json(folder / "config.json", "the configuration of a model")
    return not (isinstance(plain, dict) and "model_type" in plain)  # timm has such a file, too


VECTORS = "vectors"
MODEL = "model"
ImageInput: TypeAlias = str | Path | Image.Image


@final
@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A retrieval model with its processor: encodes and compares images and texts.

    Attributes:
        model: the `RetrievalModel`, a torch module.
        processor: turns images and texts into its input; None for ready-made vectors.
        name: the name or folder it was loaded from.
        spec: the call that builds it.
        card: provenance and metrics, where it was saved by counterfoil.
    """

    model: RetrievalModel
    processor: Processor | None
    name: str
    spec: Config[RetrievalModel] | None = None
    card: SavedModelCard | None = field(default=None)

    def process(self, dataset: ImageTextDataset) -> ProcessedDataset:
        """What it sees of a data set."""
        if self.processor is not None:
            if isinstance(self.model, FrozenWithAdapters):
                return model_on_vectors(self.model.body, self.processor.process(dataset))
            return cache_frozen_tower(self.model, self.processor).process(dataset)
        if dataset.features is None:
            raise ValueError(f"{dataset.name} has no vectors of images to compare")
        return Processor(FeatureProcessor(dataset.features.width), None).process(dataset)

    def embed(self, dataset: ImageTextDataset) -> EmbeddedDataset:
        """The model with all images and texts of a data set encoded.

        Raises:
            ValueError: the data set has no images or no texts.
        """
        if not len(dataset) or not len(dataset.texts):
            raise ValueError(
                f"{dataset.name} ({dataset.split_name}) has {len(dataset)} images and "
                f"{len(dataset.texts)} "
                "texts; at least one of each is needed"
            )
        processor = self.process(dataset)
        pair = isinstance(self.model, DualEncoder | OpenClipModel)
        kept = cached_vectors(self.model, processor) if pair else None
        images, texts = kept or (
            encode_images(self.model, processor.images, len(dataset)),
            encode_texts(self.model, processor.texts, len(dataset.texts)),
        )
        return EmbeddedDataset(self.model, images, texts)

    @torch.inference_mode()
    def encode(self, items: Sequence[str | Path | Image.Image]) -> Embeddings:
        """Encode captions (str), or images (PIL images and `Path`), as bags of vectors.

        Raises:
            ValueError: nothing or a mixture was given, or the model reads stored features only.
        """
        from counterfoil.data.images import open_picture

        if self.processor is None:
            raise ValueError("ready-made vectors have no encoder; give a model folder or name")
        captions = [item for item in items if isinstance(item, str)]
        pictures = [
            open_picture(item) if isinstance(item, Path) else item
            for item in items
            if not isinstance(item, str)
        ]
        if bool(captions) == bool(pictures):
            raise ValueError("give captions (str) or pictures (paths or PIL images), not both")
        if any(part.training for part in self.model.modules()):  # else many are set in vain
            self.model.eval()
        device = next(self.model.parameters()).device
        if captions:
            return self.model.encode_texts(self.processor.process_texts(captions).to(device))
        return self.model.encode_images(self.processor.process_images(pictures).to(device))

    def similarity(
        self, images: ImageInput | Sequence[ImageInput], texts: str | Sequence[str]
    ) -> NDArray[np.float32]:
        """Score every image against every text.

        Args:
            images: a path (str or `Path`), a PIL image, or a list of them.
            texts: a caption, or a list of them.

        Returns:
            (I, T) float32; higher is better. Scores of two models are not comparable.

        Raises:
            ValueError: a list is empty, an image cannot be read, or the model takes features
                instead of pixels.
        """
        encoded_images = self._encode_images(images)
        encoded_texts = self.encode([texts] if isinstance(texts, str) else list(texts))
        with torch.inference_mode():
            scores = self.model.score_matrix(encoded_images, encoded_texts)
        return np.asarray(scores.float().cpu().numpy(), dtype=np.float32)

    def encode_images(self, images: ImageInput | Sequence[ImageInput]) -> NDArray[np.float32]:
        """(I, D) embeddings of images, for a model with one vector per item.

        Raises:
            ValueError: as `similarity`, or the model makes several vectors of an item.
        """
        return self._single_vectors(self._encode_images(images))

    def encode_texts(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """(T, D) embeddings of texts, for a model with one vector per item.

        Raises:
            ValueError: as `similarity`, or the model makes several vectors of an item.
        """
        return self._single_vectors(self.encode([texts] if isinstance(texts, str) else list(texts)))

    def _encode_images(self, images: ImageInput | Sequence[ImageInput]) -> Embeddings:
        """Unlike in `encode`, a string is a path."""
        several = [images] if isinstance(images, str | Path | Image.Image) else images
        return self.encode([Path(one) if isinstance(one, str) else one for one in several])

    def _single_vectors(self, encoded: Embeddings) -> NDArray[np.float32]:
        if encoded.tokens.shape[1] != 1:
            raise ValueError(
                f"{self.name} makes several vectors of an item; `encode` returns them all with "
                "their mask, `similarity` compares them"
            )
        return np.asarray(encoded.tokens[:, 0].float().cpu().numpy(), dtype=np.float32)

    @torch.inference_mode()
    def score(self, picture: ImageInput, captions: Sequence[str]) -> Tensor:
        """(N,) scores of captions for one image, as a tensor; see `similarity`."""
        return (
            self.model.score_matrix(self._encode_images(picture), self.encode(captions))[0]
            .float()
            .cpu()
        )

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        lines = [
            f"Model({self.name!r}): {type(self.model).__name__}, {parameters:,} parameters",
            f"  reads {_describe_processor(self.processor)}",
        ]
        if self.card is None:
            lines.append("  pretrained" if self.processor else "  compares by inner product")
        else:
            known = self.card.provenance
            facts = [f"{key} {known[key]}" for key in ("recipe", "data", "seed") if key in known]
            saved = f"saved with counterfoil {self.card.version}"
            lines.append("  " + "; ".join([*facts, saved]))
        return "\n".join(lines)

    @staticmethod
    def from_pretrained(name: str | Path, *, revision: str | None = None) -> Model:
        """A saved or pretrained model.

        Args:
            name: what `load_model` opens, or the name of a model that was pushed to the hub.
            revision: of a model that was pushed; None for the newest.

        Raises:
            ValueError: there is no such model, or it is damaged.
        """
        return load_model(name, revision=revision)

    def save_pretrained(self, folder: str | Path, *, evaluations: Sequence[Path] = ()) -> None:
        """Write a folder that opens anywhere, with a card; see `counterfoil.hub.save_shared`.

        Raises:
            ValueError: something is there, ready-made vectors, or a file that is no evaluation.
        """
        from counterfoil import hub

        hub.save_shared(self, Path(folder), evaluations=evaluations)

    def push_to_hub(
        self,
        name: str,
        *,
        evaluations: Sequence[Path] = (),
        private: bool = True,
        message: str = "A model of counterfoil",
    ) -> str:
        """Save the model on the Hugging Face hub; its address.

        Args:
            name: as in "user/model"; what is there gets a new version.
            evaluations: files that ``counterfoil evaluate --out`` wrote, for the card.
            private: whether a new repository is seen by its owner only.
            message: of the commit.

        Raises:
            ValueError: the hub does not take it, ready-made vectors, or no evaluation.
        """
        from counterfoil import hub

        return hub.push_shared(
            self, name, evaluations=evaluations, private=private, message=message
        )

    def source(self) -> Source:
        """What the manifest of mined lists says of it."""
        spec = self.spec.digest() if self.spec else ""
        return Source(
            matcher=repr(self.spec),
            spec=spec,
            checkpoint=self.digest(),
            identity=self.identity(),
        )

    def identity(self) -> str:
        """Sixteen hex digits of all that it makes of images and texts, wherever it lies."""
        return identity_of(self.model, self.spec, self.processor)

    def digest(self) -> str:
        """Sixteen hex digits of the weights."""
        return weights_digest(self.model)


def _describe_processor(processor: Processor | None) -> str:
    if processor is None:
        return "ready-made vectors"
    match processor.image_processor:
        case PixelProcessor(size=size):
            images = f"pictures at {size} px"
        case FeatureProcessor(width=width):
            images = f"image features of width {width}"
        case other:
            images = type(other).__name__
    if processor.tokenizer is None:
        return f"{images}; texts as vectors"
    tokenizer = processor.tokenizer
    return f"{images}; texts by {type(tokenizer).__name__} of {tokenizer.size:,} tokens"


def model_identity(name: str | Path) -> str:
    """Sixteen hex digits of what lies in a model's folder, or the name of one that has none.

    Raises:
        ValueError: there is a folder, and no model in it.
    """
    folder = _folder(Path(name))
    if folder is None:
        return str(name)
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def load_model(name: str | Path, *, revision: str | None = None) -> Model:
    """A model to use.

    Args:
        name: a model folder, a training stage's folder, the name of a model that was pushed to the
            hub, the name or folder of a Hugging Face CLIP, SigLIP, ViLT or BLIP-ITM, the folder of
            a CLIP of sentence-transformers, ``open_clip:`` and a name or folder that open_clip
            knows, two towers to be trained as in ``timm:resnet50+bert-base-uncased``, or "vectors"
            for data sets that are ready-made embeddings.
        revision: of a model that was pushed to the hub; None for the newest.

    Raises:
        ValueError: it is none of these, or damaged.
    """
    if str(name) == VECTORS:
        return Model(EmbeddingModel(), None, VECTORS, make_config(EmbeddingModel))
    if str(name).startswith((OPEN_CLIP, PREFIX)):
        return _pretrained(str(name))
    folder = _folder(Path(name)) or download_model(str(name), revision=revision)
    if folder is None and revision:
        raise ValueError(
            f"{name} at revision {revision!r} is no model that was pushed to the hub by counterfoil"
        )
    if folder is None or not (folder / CARD).is_file():
        return _pretrained(str(folder or name))
    saved = load_saved_model(folder, device=distributed.device())
    return Model(saved.model, saved.processor, str(name), saved.card.model, saved.card)


def _folder(path: Path) -> Path | None:
    """Where a model lies; None where the name is none of a folder."""
    for folder in (path, path / MODEL):
        if (folder / CARD).is_file():
            return folder
    if not path.is_dir():
        return None
    if (inner := encoder_folder(path)) != path:
        return inner
    if not any((path / file).is_file() for file in ("config.json", CONFIG)):
        raise ValueError(
            f"{path} holds no model: neither {CARD} nor a Hugging Face config.json nor open_clip's "
            f"{CONFIG} is there; was its training finished?"
        )
    return path


def _pretrained(name: str) -> Model:
    if name.startswith(PREFIX) or open_clip_pair(name):
        return _pair(name)
    match config_of(name).model_type:
        case "vilt":
            return _vilt(name)
        case "blip":
            return _blip(name)
    return _pair(name)


def _pair(name: str) -> Model:
    """What is drawn at random is the same at each opening."""
    from counterfoil.core.console import warn

    pair = pretrained_pair(name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = pair.spec.build()
    if pair.drawn:
        warn(f"{name}: weights that its name does not tell are random; it has to be trained")
    return Model(model.to(distributed.device()).eval(), pair.processor.made(), name, pair.spec)


def _vilt(name: str) -> Model:
    """Its pictures keep their shape, and sides are multiples of a patch."""
    from counterfoil.models.vilt import public_vilt

    tokenizer, form = WordPieceTokenizer(name, longest=longest_text(name)), picture_format(name)
    found = public_vilt(name, mask=tokenizer.mask)
    patch = found.model.arguments["patch"]
    eye = PixelProcessor(form.size, form.mean, form.deviation, divisor=patch)
    model = found.build().to(distributed.device())
    return Model(model, Processor(eye, tokenizer), name, found.model)


def _blip(name: str) -> Model:
    from counterfoil.models.blip import public_blip

    tokenizer, form = WordPieceTokenizer(name, longest=longest_text(name)), picture_format(name)
    found = public_blip(name, mask=tokenizer.mask)
    eye = PixelProcessor(form.size, form.mean, form.deviation, form.crop)
    model = found.build().to(distributed.device())
    return Model(model, Processor(eye, tokenizer), name, found.model)
