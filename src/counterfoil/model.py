"""A retrieval model with its processor: saved in a folder, opened from a folder or by name."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from counterfoil import __version__
from counterfoil.core import distributed, registry
from counterfoil.core.config import Config, config_from_dict, from_data, lazy
from counterfoil.core.config import config as make_config
from counterfoil.core.console import progress, warn
from counterfoil.core.io import (
    atomic_folder,
    ensure_writable_folder,
    parse_json,
    read_json,
    write_array,
    write_json,
)
from counterfoil.core.model_files import check_model_folder, check_settings
from counterfoil.core.optional import first_line
from counterfoil.core.saved_names import short_name
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.contents import ContentDigests
from counterfoil.data.corrections import CORRECTIONS_FILE, judged_pairs, write_corrections
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.feature_cache import CachedFeatureProcessor
from counterfoil.data.images import decode_picture, open_picture
from counterfoil.data.processor import (
    FeatureProcessor,
    PixelProcessor,
    ProcessedDataset,
    Processor,
    ProcessorConfig,
)
from counterfoil.data.tokenizers import WordPieceTokenizer
from counterfoil.models import open_clip
from counterfoil.models.base import FrozenTower, HasFiles, RetrievalModel, SingleVectorModel
from counterfoil.models.checkpoints import ConvertedModel
from counterfoil.models.clip import DualEncoder, is_siglip2, max_text_length, vector_width
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.layers.positions import stretched_length
from counterfoil.models.layers.pretrained import (
    PREFIX,
    BertTextTower,
    TimmTower,
    config_of,
    picture_format,
    timm_format,
)
from counterfoil.models.open_clip import OpenClipModel
from counterfoil.models.sentence_transformers import (
    ENCODER,
    MODULES,
    DenseEmbedder,
    SentenceTransformersModel,
    Weights,
    encoder_folder,
    library_kind,
    picture_side,
)
from counterfoil.models.vsepp import VSEPP
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

WEIGHTS, CARD = "model.safetensors", "model.json"
VECTORS = "vectors"
_TRIAL = 8  # images and texts whose scores say how a model compares
MODEL = "model"
# an image: a path, a PIL image, the bytes of a file, or a (H, W, 3) uint8 array
ImageInput: TypeAlias = str | Path | Image.Image | bytes | NDArray[Any]

_KIND = "counterfoil model"
OWN_FILES = "own_files"  # of `HasFiles`
FORMAT = 1  # of model.json


# A model folder: ``model.safetensors`` holds the weights, ``model.json`` the call that builds the
# model with its provenance and metrics, ``processor.json`` and the tokenizer's files the processor.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModelCard:
    """Content of ``model.json``: how the model is built, its provenance and metrics.

    Attributes:
        model: the call that builds the model.
        provenance: JSON-ready facts: the recipe, the data, the seed, the machine.
        metrics: figures by name.
        version: of counterfoil when it was saved.
        tokenizer: digest of the tokenizer; None if there is none, or it was not recorded.
    """

    model: Config[RetrievalModel]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: str = ""
    tokenizer: str | None = None


def save_model(
    folder: Path,
    *,
    spec: Config[RetrievalModel],
    model: RetrievalModel,
    processor: Processor,
    provenance: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write a model folder atomically; an existing one is replaced."""
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
        for part in model.modules():
            if isinstance(part, HasFiles):
                part.write_files(temporary / part.own_files)


def load_saved_model(folder: Path, *, device: torch.device | str = "cpu") -> Model:
    """Open a model folder; nothing in it is executed but constructors of this package's modules."""
    card = read_card(folder)
    weights, metadata = read_tensors(folder / WEIGHTS, "the weights of a model")
    if metadata.get("model") != card.model.digest():
        raise ValueError(f"{folder / WEIGHTS} and {folder / CARD} belong to different models")
    try:
        with _BoundedBuild(weights, folder / CARD):
            model: RetrievalModel = _with_own_files(card.model, folder).build()
    except ValueError:
        raise
    except Exception as error:  # constructors raise anything at wrong arguments
        raise ValueError(
            f"{folder / CARD} does not fit this version of counterfoil: {first_line(error)}"
        ) from error
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{folder / WEIGHTS} does not fit the model of {folder / CARD} in this version of "
            f"counterfoil (saved with {card.version}): {first}"
        ) from error
    processor = Processor.open(folder)
    tokenizer = processor.tokenizer.digest if processor.tokenizer else None
    if card.tokenizer not in (None, tokenizer):
        raise ValueError(f"the tokenizer in {folder} is another one than the model was saved with")
    return Model(model.to(device).eval(), processor, str(folder), card.model, card)


def read_card(folder: Path) -> SavedModelCard:
    """Read the card of a model folder.

    Raises:
        ValueError: it is none, of another format, or calls what a model folder may not call.
    """
    path = folder / CARD
    content = read_json(path, "the card of a model")
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise ValueError(f"{path} is not the card of a counterfoil model")
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')}, and this version of counterfoil "
            f"reads format {FORMAT}; open it with the version that wrote it"
        )
    spec = config_from_dict(content.get("model"), allow=("counterfoil",))
    _check_calls(spec, path)
    for call in _inner_calls(spec):
        _check_sources(call, path)
    _with_own_files(spec, folder)
    return SavedModelCard(
        model=spec,
        provenance=content.get("provenance", {}),
        metrics=content.get("metrics", {}),
        version=str(content.get("version", "")),
        tokenizer=content.get("tokenizer"),
    )


def _check_calls(spec: Config[Any], where: object) -> None:
    """Refuse calls of anything but modules: a model folder may be untrusted."""
    for call in _inner_calls(spec):
        parent = RetrievalModel if call is spec else nn.Module
        if isinstance(call.make, type) and issubclass(call.make, parent):
            continue
        name = getattr(call.make, "__qualname__", call.make)
        if call is spec:
            raise ValueError(f"{where} describes {name}, which is no retrieval model")
        raise ValueError(f"{where} calls {name}, which is no part of a model; the file is refused")


def check_reopens(spec: Config[RetrievalModel], name: str) -> None:
    """Refuse a model whose folder could not be opened again: call it before a training.

    Args:
        spec: the call that builds the model; placeholders may be left.
        name: of the model, for the error.

    Raises:
        ValueError: the call has a class that files may not name, or an argument that no file has.
    """
    try:
        _check_calls(config_from_dict(json.loads(json.dumps(spec.to_dict()))), name)
    except ValueError as error:
        raise ValueError(
            f"{name} could not be opened again from a folder: {error}; build it of "
            "counterfoil's own classes and plain values, or register your class, "
            "@counterfoil.core.registry.register.model('name'), as docs/extending.md shows; "
            "weights of other modules are trained in place by counterfoil.training.trainer.fit, "
            "and are yours to save"
        ) from error


def check_model_reopens(model: Model) -> None:
    """Refuse a model that could not be opened again, before it is trained or saved.

    Raises:
        ValueError: as `check_reopens`, or it has no processor, or its call builds another model.
    """
    if model.processor is None or model.spec is None:
        raise ValueError(
            f"{model.name} has no processor or no config, so it cannot be trained and saved; "
            "open a model with load_model, or give Model(..., processor, name, spec)"
        )
    check_reopens(model.spec, model.name)
    if any(_is_pretrained(call) for call in _inner_calls(model.spec)):
        return  # load_model has built it so
    with torch.random.fork_rng(devices=[]):  # a training draws what it did without this
        fresh = model.spec.build()
    wanted, own = ({k: v.shape for k, v in m.state_dict().items()} for m in (fresh, model.model))
    if other := sorted(key for key in wanted | own if wanted.get(key) != own.get(key)):
        raise ValueError(
            f"{model.name} could not be opened again from a folder: its spec {model.spec!r} "
            f"builds a model whose {other[0]} is {_shape(wanted, other[0])}, and its module's is "
            f"{_shape(own, other[0])}; give the spec that the module was built by"
        )


def _shape(shapes: Mapping[str, torch.Size], name: str) -> str:
    return str(tuple(shapes[name])) if name in shapes else "not there"


def _is_pretrained(call: Config[Any]) -> bool:
    """True for a part whose constructor may load weights or files."""
    return "pretrained" in inspect.signature(call.make).parameters


def _with_own_files(value: Any, folder: Path) -> Any:
    """A call whose parts read their files in the model folder, wherever they came from.

    Calls inside the arguments, also in lists and mappings, are replaced too.
    """
    match value:
        case Config():
            inner = {name: _with_own_files(item, folder) for name, item in value.arguments.items()}
            if own := getattr(value.make, OWN_FILES, None):
                if not (folder / own).is_dir():
                    raise ValueError(
                        f"{folder / own} is missing; the model of {folder / CARD} reads it"
                    )
                inner["name"] = str(folder / own)
            return Config(value.make, inner)
        case Mapping():
            return {key: _with_own_files(item, folder) for key, item in value.items()}
        case tuple() | list():
            return type(value)(_with_own_files(item, folder) for item in value)
    return value


def _check_sources(call: Config[Any], path: Path) -> None:
    """Refuse a pretrained part that does not carry its configuration: it would be downloaded."""
    if hasattr(call.make, OWN_FILES):
        return  # it reads the model folder, see `_with_own_files`
    known = inspect.signature(call.make).parameters
    if "pretrained" not in known:
        return
    arguments = {name: parameter.default for name, parameter in known.items()} | dict(
        call.arguments
    )
    name = str(arguments.get("name", ""))
    # timm knows its architectures by name; "hf-hub:USER/MODEL" is another matter
    carried = isinstance(arguments["config"], str) if "config" in known else ":" not in name
    if arguments["pretrained"] is not False or not carried:
        raise ValueError(
            f"{path} asks for weights or a configuration from elsewhere for its "
            f"{call.make.__qualname__}; a saved model brings its own, and the file is refused"
        )
    if "config" in known:
        check_settings(parse_json(arguments["config"], path), path, fetches=True)


class _BoundedBuild(TorchFunctionMode):
    """Limits what a model may allocate while it is built, by the tensors of its weights file.

    A card with a million layers or a vocabulary of billions fails here, before memory is
    allocated; shapes are checked afterwards, when the weights are loaded.
    """

    MAKERS = frozenset(
        getattr(torch, name)
        for name in (
            *("empty", "empty_strided", "zeros", "ones", "full", "eye"),
            *("arange", "linspace", "rand", "randn"),
        )
    )

    def __init__(self, weights: Mapping[str, Tensor], path: Path) -> None:
        super().__init__()
        self.path = path
        self.calls = 20_000 + 200 * len(weights)  # 10 to 20 a tensor are usual
        self.numbers = 2**24 + 4 * max((tensor.numel() for tensor in weights.values()), default=0)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls -= 1
        options = kwargs or {}
        size = options.get("size", args[0] if args and isinstance(args[0], tuple | list) else args)
        sides = [side for side in size if isinstance(side, int)]
        if self.calls < 0 or (func in self.MAKERS and math.prod(sides) > self.numbers):
            raise ValueError(f"{self.path} describes a much larger model than its weights are")
        return func(*args, **options)


def _inner_calls(value: Any) -> Iterator[Config[Any]]:
    match value:
        case Config():
            yield value
            yield from _inner_calls(value.arguments)
        case Mapping():
            for inner in value.values():
                yield from _inner_calls(inner)
        case tuple() | list():
            for inner in value:
                yield from _inner_calls(inner)


# Models on the Hugging Face hub.


_FILES = (CARD, "*.safetensors", "*.json", "pieces/*", f"{ENCODER}/*", "README.md")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_SETTINGS = ["*.json", "*.jinja", "*.txt"]  # what says which kind of model a name is


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


# Pretrained pairs of an image and a text encoder: how each is built, and its processor.


WIDTH = 512  # of the heads on two towers
MAX_TOKENS = 64  # of a caption, for two towers


@final
@dataclass(frozen=True, slots=True)
class TimmPretrainedPair:
    """An image model of timm and a language model of Hugging Face, each with an untrained head."""

    name: str  # as in ``timm:resnet50+bert-base-uncased``
    untrained: bool = True  # its heads have random weights

    def __post_init__(self) -> None:
        if not all(self._towers):
            raise ValueError(
                f"{self.name!r} names no two towers; give an image model of timm and a language "
                f"model, as in '{PREFIX}resnet50+bert-base-uncased'"
            )

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it with pretrained towers and random heads."""
        return self._config(pretrained=True, config=None, trained=True)

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training; with `frozen`, of its heads only."""
        if lora:
            raise ValueError(f"{self.name} cannot have adapters; tune it full, or frozen")
        return self._config(
            pretrained=from_data("pretrained"), config=from_data("config"), trained=not frozen
        )

    @property
    def processor(self) -> ProcessorConfig:
        """Preprocessing of images and texts as in its towers' pretraining."""
        image, text = self._towers
        form = timm_format(image)
        return ProcessorConfig(
            images="pixels",
            size=form.size,
            mean=form.mean,
            deviation=form.deviation,
            texts=text,
            longest=min(MAX_TOKENS, max_text_length(text)),
        )

    @property
    def _towers(self) -> tuple[str, str]:
        image, _, text = self.name.removeprefix(PREFIX).partition("+")
        return image, text

    def _config(self, *, pretrained: Any, config: Any, trained: bool) -> Config[RetrievalModel]:
        image, text = self._towers
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


@final
@dataclass(frozen=True, slots=True)
class PretrainedPair:
    """A pretrained pair of encoders, of transformers or open_clip."""

    make: type[DualEncoder] | type[OpenClipModel]
    name: str
    processor: ProcessorConfig
    width: int  # D of its vectors
    config: str | None = None  # of a model of open_clip
    untrained: bool = False  # whether its weights are random
    positions: int = 0  # of its texts, where they are stretched

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""
        config: dict[str, Any] = {} if self.config is None else {"config": self.config}
        return make_config(self.make, name=self.name, **config, **self._length)

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training, of what `frozen` and `lora` leave trainable.

        Args:
            frozen: train only adapters behind its vectors.
            lora: rank of LoRA adapters on its attention, the only trained weights; 0 for none.
        """
        pretrained, config = from_data("pretrained"), from_data("config")
        if frozen:
            body: RetrievalModel = lazy(
                self.make, name=self.name, pretrained=pretrained, config=config, **self._length
            )
            return make_config(FrozenWithAdapters, body=body, width=self.width)
        return make_config(
            self.make,
            name=self.name,
            pretrained=pretrained,
            config=config,
            lora=lora,
            **self._length,
        )

    @property
    def _length(self) -> dict[str, Any]:
        return {"positions": self.positions} if self.positions else {}


@final
@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A model of sentence-transformers."""

    make: type[SentenceTransformersModel]
    name: str
    untrained: bool = False  # whether its weights are random

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""
        return make_config(self.make, name=self.name)

    @property
    def processor(self) -> ProcessorConfig:
        """Whole pictures, and captions as they are."""
        side = picture_side(self.make, self.name)
        return ProcessorConfig(images="pixels", size=side, whole=True, texts="characters")

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training; see `PretrainedPair.trained`.

        All weights are trained in single precision; frozen ones stay as they are stored.
        """
        pretrained = from_data("pretrained")
        if frozen:
            if self.make is not DenseEmbedder:
                raise ValueError(
                    f"{self.name} does not make one vector of an item, which adapters behind a "
                    "frozen model need; tune it full, or with lora"
                )
            body: RetrievalModel = lazy(self.make, name=self.name, pretrained=pretrained)
            width = int(
                make_config(self.make, name=self.name).build().body.get_embedding_dimension()
            )
            return make_config(FrozenWithAdapters, body=body, width=width)
        weights: Weights = "stored" if lora else "fp32"
        return make_config(
            self.make, name=self.name, pretrained=pretrained, weights=weights, lora=lora
        )


def pretrained_pair(
    name: str, *, long_captions: bool = False
) -> PretrainedPair | TimmPretrainedPair | LibraryModel:
    """The pretrained pair of encoders of a name or folder.

    With `long_captions` its text positions are stretched, see
    `counterfoil.models.layers.positions`.
    """
    if name.startswith(PREFIX):
        if long_captions:
            raise ValueError(
                f"{name} has the text positions of its language model; only those of a CLIP are "
                "stretched: leave --long-captions out"
            )
        return TimmPretrainedPair(name)
    if library := sentence_transformers_kind(name):
        if long_captions:
            raise ValueError(
                f"{name} is a model of sentence-transformers; only the text positions of a CLIP of "
                "transformers or open_clip are stretched: leave --long-captions out"
            )
        return LibraryModel(library, name)
    config, untrained = None, False
    make: type[DualEncoder] | type[OpenClipModel] = DualEncoder
    if is_open_clip(name):
        place = open_clip.open_clip_place(name)
        config, untrained = open_clip.open_clip_config(name), place.fresh
        make, form = OpenClipModel, open_clip.open_clip_picture_format(name, config)
        texts, longest = f"{open_clip.PREFIX}{place.model}", open_clip.open_clip_text_length(config)
        width = open_clip.open_clip_width(config)
    else:
        form, texts = picture_format(name), name
        longest, width = max_text_length(name), vector_width(name)
    positions = stretched_length(longest) if long_captions else 0
    processor = ProcessorConfig(
        images="pixels",
        size=form.size,
        mean=form.mean,
        deviation=form.deviation,
        crop=form.crop,
        frame=form.frame,
        texts=texts,
        longest=positions or longest,
        siglip2=make is DualEncoder and is_siglip2(config_of(name)),
    )
    return PretrainedPair(make, name, processor, width, config, untrained, positions)


def starts_untrained(name: str) -> bool:
    """Return True if a model of this name has random weights, so that it has to be trained."""
    if name.startswith(PREFIX):
        return True
    return name.startswith(open_clip.PREFIX) and open_clip.open_clip_place(name).fresh


def is_open_clip(name: str) -> bool:
    """Return True for a name with open_clip's prefix, and a folder that only open_clip opens."""
    if name.startswith(open_clip.PREFIX):
        return True
    folder = Path(name)
    if not (folder / open_clip.CONFIG).is_file():
        return False
    if not (folder / "config.json").is_file():
        return True
    config = read_json(folder / "config.json", "the configuration of a model")
    return not (isinstance(config, dict) and "model_type" in config)  # timm has such a file, too


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


def _open_image(item: Path | Image.Image | bytes | NDArray[Any]) -> Image.Image:
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

    @property
    def reads_pixels(self) -> bool:
        """True if it encodes images from their pixels."""
        images = self.processor and self.processor.image_processor
        return isinstance(images, PixelProcessor)

    @property
    def reads_features(self) -> bool:
        """True if it encodes images from stored features."""
        images = self.processor and self.processor.image_processor
        return isinstance(images, FeatureProcessor)

    def process(self, dataset: ImageTextDataset) -> ProcessedDataset:
        """The data set as input of the model; a frozen part's outputs are cached on disk."""
        if self.processor is not None:
            if isinstance(self.model, FrozenWithAdapters):
                return model_on_vectors(self.model.body, self.processor.process(dataset))
            return cache_frozen_tower(self.model, self.processor).process(dataset)
        if dataset.features is None:
            raise ValueError(f"{dataset.name} has no vectors of images to compare")
        return Processor(FeatureProcessor(dataset.features.width), None).process(dataset)

    def embed(self, dataset: ImageTextDataset) -> EmbeddedDataset:
        """Encode all images and texts of a data set.

        Raises:
            ValueError: it is no data set, or has no images or no texts.
        """
        if not isinstance(dataset, ImageTextDataset):
            raise ValueError(
                f"a data set is needed, not the {type(dataset).__name__} {dataset!r}; open it with "
                "counterfoil.load_dataset"
            )
        dataset.check_captions("to rank")
        if not len(dataset):
            raise ValueError(
                f"{dataset.name} ({dataset.split_name}) has {len(dataset)} images and "
                f"{len(dataset.texts)} texts; at least one of each is needed"
            )
        inputs = self.process(dataset)
        single = isinstance(self.model, DualEncoder | OpenClipModel)
        cached = cached_vectors(self.model, inputs) if single else None
        images, texts = cached or (
            encode_images(self.model, inputs.images, len(dataset)),
            encode_texts(self.model, inputs.texts, len(dataset.texts)),
        )
        return EmbeddedDataset(self.model, images, texts)

    def write_vectors(self, dataset: ImageTextDataset, folder: str | Path) -> ImageTextDataset:
        """Encode a data set into a folder of vectors, a data set for the model "vectors".

        What a run that was stopped has encoded is kept: call it again to continue.

        Args:
            dataset: the data set, with pictures.
            folder: to write.

        Returns:
            The data set of the vectors, with the ids and the captions of the data, so that lists
            that are mined with the vectors are lists of the data.

        Raises:
            ValueError: the model does not compare one vector of an item by cosine or inner product,
                or the folder was begun with another model or data set.
        """
        from counterfoil.data.readers import load_dataset

        folder = Path(folder)
        ensure_writable_folder(folder)
        facts = {
            "model": self.identity(),
            "data": dataset.fingerprint,
            "contents": asdict(ContentDigests.of(dataset)),
        }
        inputs = self.process(dataset)
        self._check_vectors(inputs)
        write_vectors(folder, self.model, inputs, facts)
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
        images = encode_images(self.model, inputs.images, counts[0])
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
        device = next(self.model.parameters()).device
        if kind is str:
            captions = [item for item in batch if isinstance(item, str)]
            return self.model.encode_texts(self.processor.process_texts(captions).to(device))
        pictures = [_open_image(item) for item in batch if not isinstance(item, str)]
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
            f"Model({self.name!r}): {type(self.model).__name__}, {parameters:,} parameters",
            f"  reads {_describe_processor(self.processor)}",
        ]
        if self.card is None:
            lines += ["  pretrained"] if self.processor else []
        else:
            known = self.card.provenance
            facts = [f"{key} {known[key]}" for key in ("recipe", "data", "seed") if key in known]
            saved = f"saved with counterfoil {self.card.version}"
            lines.append("  " + "; ".join([*facts, saved]))
        lines.append(f"  score: {self.model.score_name}")
        return "\n".join(lines)

    @staticmethod
    def from_pretrained(name: str | Path, *, revision: str | None = None) -> Model:
        """Open a saved or pretrained model; see `load_model`."""
        return load_model(name, revision=revision)

    def save_pretrained(self, folder: str | Path, *, evaluations: Sequence[Path] = ()) -> None:
        """Write a self-contained model folder with a card; see `counterfoil.hub.save_shared`.

        Args:
            folder: to write; must not exist yet, or be empty.
            evaluations: files that ``counterfoil evaluate --json`` wrote, for the card.

        Raises:
            ValueError: the folder is not empty, the model is ready-made vectors, or a file is no
                evaluation.
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
        from counterfoil import hub

        return hub.push_shared(
            self, name, evaluations=evaluations, private=private, message=message
        )

    def source(self) -> ModelSource:
        """Digests that the manifest of mined negatives stores."""
        return ModelSource(
            matcher=repr(self.spec),
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
    match processor.image_processor:
        case PixelProcessor(size=size, whole=True):
            return f"whole pictures of up to {size} px, and captions, which its library prepares"
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
    """Sixteen hex digits of the files of a model folder; the name of a model without a folder."""
    folder = _model_folder(Path(name))
    if folder is None:
        return str(name)
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def load_model(
    name: str | Path,
    *,
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
            inner product as "vectors:inner-product".
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
    large = {key: value for key, value in large.items() if value not in ("stored", None, 0)}
    if large:
        return _load_large(str(name), large)
    if long_captions:
        return _load_long(str(name))
    if str(name).partition(":")[0] == VECTORS:
        return _load_vectors(str(name))
    if str(name).startswith((open_clip.PREFIX, PREFIX)):
        return _load_pair(str(name))
    if str(name).endswith("/") and not Path(name).exists():  # no name on the hub ends so
        raise ValueError(f"{name} does not exist; give the folder of a model, or a name on the hub")
    folder = _model_folder(Path(name)) or download_model(str(name), revision=revision)
    if folder is None and revision:
        raise ValueError(
            f"{name} at revision {revision!r} is no model that was pushed to the hub by counterfoil"
        )
    if folder is None or not (folder / CARD).is_file():
        return _load_pretrained(str(folder or name))
    return replace(load_saved_model(folder, device=distributed.device()), name=str(name))


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
    if not any((path / file).is_file() for file in ("config.json", MODULES, open_clip.CONFIG)):
        if inside := _models_inside(path):
            listed = ", ".join(map(str, inside))
            raise ValueError(f"{path} is a folder of several models; name one of them: {listed}")
        raise ValueError(
            f"{path} holds no model: neither {CARD} nor a Hugging Face config.json nor open_clip's "
            f"{open_clip.CONFIG} is there; was its training finished?"
        )
    return path


def _check_path(path: Path) -> None:
    """Refuse what can only be meant as a folder of a model, and is none."""
    if str(path).startswith((open_clip.PREFIX, PREFIX)):
        return  # whose tags and towers may have slashes
    inside = _models_inside(path.parent) if path.parent.is_dir() and path.parent.name else []
    near = difflib.get_close_matches(str(path), list(map(str, inside)), 1)
    if near or len(path.parts) > 2 or path.is_absolute():  # else it may be a name on the hub
        listed = ", ".join(map(str, inside)) or "none"
        hint = f"did you mean {near[0]}? " if near else "give the folder of a model; "
        raise ValueError(f"{path} does not exist; {hint}models in {path.parent}: {listed}")


def _load_pretrained(name: str) -> Model:
    """A model of open_clip, sentence-transformers or transformers."""
    if library := sentence_transformers_kind(name):
        return _load_library(make_config(library, name=name))
    kind = "" if is_open_clip(name) else config_of(name).model_type
    if kind not in registry.names("loader"):
        return _load_pair(name)
    tokenizer, form = WordPieceTokenizer(name, longest=max_text_length(name)), picture_format(name)
    converted: ConvertedModel = registry.find("loader", kind)(name, mask=tokenizer.mask)
    frame = form.frame
    if converted.divisor:  # its images keep their shape, and their sides are multiples of a patch
        if "bicubic" not in (frame or "bicubic"):
            raise ValueError(f"{name} resizes pictures by {frame}; such a model is read by bicubic")
        frame = ""
    crop = form.crop and not converted.divisor
    images = PixelProcessor(
        form.size, form.mean, form.deviation, crop, converted.divisor, frame=frame
    )
    model = converted.build().to(distributed.device())
    return Model(model, Processor(images, tokenizer), name, converted.model)


def sentence_transformers_kind(name: str) -> type[SentenceTransformersModel] | None:
    """The class for a model of sentence-transformers, a folder or a name on the hub.

    Of a name that is not in the hub's cache the settings are downloaded, which say what it is.
    """
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    if Path(name).is_dir():
        check_model_folder(Path(name))
        return library_kind(Path(name))
    if not HUB_NAME.fullmatch(name):
        return None
    cached = try_to_load_from_cache(name, MODULES)
    known = isinstance(try_to_load_from_cache(name, "config.json"), str)  # another library's
    if cached is None and not known:  # else its path, or a mark that the model has no such file
        try:
            hf_hub_download(name, MODULES)
            cached = str(Path(snapshot_download(name, allow_patterns=_SETTINGS)) / MODULES)
        except (OSError, EntryNotFoundError, ValueError):  # another library's, none, or no network
            return None
    return library_kind(Path(cached).parent) if isinstance(cached, str) else None


def _load_large(name: str, options: Mapping[str, Any]) -> Model:
    """A model of sentence-transformers, loaded otherwise than by default."""
    if library := sentence_transformers_kind(name):
        return _load_library(make_config(library, name=name).replace(**options))
    raise ValueError(
        f"{', '.join(options)}: these are for a model of sentence-transformers, and {name} is "
        "none; leave them out"
    )


def _load_library(spec: Config[SentenceTransformersModel]) -> Model:
    """A model of sentence-transformers, which reads whole pictures and captions."""
    model = spec.build()
    processor = LibraryModel(type(model), model.name).processor.made()
    return Model(model.to(distributed.device()).eval(), processor, model.name, spec)


def _load_long(name: str) -> Model:
    """A pretrained CLIP with stretched text positions."""
    folder = None if name.startswith((open_clip.PREFIX, PREFIX)) else _model_folder(Path(name))
    if folder is not None and (folder / CARD).is_file():
        raise ValueError(
            f"{name} is saved with the text positions that it was trained with; leave "
            "long_captions out, or name the pretrained CLIP that it began with"
        )
    return _load_pair(str(folder or name), long_captions=True)


def _load_pair(name: str, *, long_captions: bool = False) -> Model:
    """A pretrained pair of encoders; random weights are the same at each opening."""
    pair = pretrained_pair(name, long_captions=long_captions)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = pair.spec.build()
    if pair.untrained:
        warn(f"{name}: some of its weights are random; train it before use")
    return Model(model.to(distributed.device()).eval(), pair.processor.made(), name, pair.spec)
