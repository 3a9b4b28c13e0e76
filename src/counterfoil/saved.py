"""A model folder: what it holds, how it is written, and what is checked when it is opened.

``model.safetensors`` holds the weights, ``model.json`` the call that builds the model with its
provenance and metrics, ``processor.json`` and the tokenizer's files the processor.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from counterfoil import __version__
from counterfoil.core import registry
from counterfoil.core.config import Config, config_from_dict
from counterfoil.core.io import atomic_folder, parse_json, read_json, write_json
from counterfoil.core.model_files import check_settings
from counterfoil.core.optional import first_line
from counterfoil.core.shipped import PAPERS
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.data.processor import INTO, Processor
from counterfoil.models.base import HasFiles, RetrievalModel

WEIGHTS, CARD = "model.safetensors", "model.json"
OWN_FILES = "own_files"  # of `HasFiles`
FORMAT = 1  # of model.json
_KIND = "counterfoil model"
T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SavedModelCard:
    """Content of ``model.json``: how the model is built, its provenance and metrics.

    Attributes:
        model: the call that builds the model; None where no file can hold it.
        provenance: JSON-ready facts: the recipe, the data, the seed, the machine.
        metrics: figures by name.
        version: of counterfoil when it was saved.
        tokenizer: digest of the tokenizer; None if there is none, or it was not recorded.
        module: the class of the network, as ``package.module:Class``; for reading only.
    """

    model: Config[Any] | None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: str = ""
    tokenizer: str | None = None
    module: str = ""

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.1f}" for name, value in self.metrics.items())
        dev = f"; dev: {figures}" if figures else ""
        return f"SavedModelCard({self.model or self.module}; {'; '.join(self.facts)}{dev})"

    @property
    def facts(self) -> list[str]:
        """Recipe, data, seed and version, as far as they are known, in words."""
        known = self.provenance
        facts = [f"{key} {known[key]}" for key in ("recipe", "data", "seed") if key in known]
        return [*facts, f"saved with counterfoil {self.version}" if self.version else "saved"]


class OpenedModel(Protocol):
    """What is saved of a `counterfoil.model.Model`."""

    @property
    def model(self) -> RetrievalModel:
        """The network whose weights are saved."""
        ...

    @property
    def processor(self) -> Processor | None:
        """What makes its inputs, where it has one."""
        ...

    @property
    def name(self) -> str:
        """What it is called in cards and reports."""
        ...

    @property
    def spec(self) -> Config[Any] | None:
        """The call that builds the network again."""
        ...

    @property
    def card(self) -> SavedModelCard | None:
        """Where its weights come from and what was measured."""
        ...


def save_model(
    folder: Path,
    *,
    spec: Config[Any] | None,
    model: RetrievalModel,
    processor: Processor,
    provenance: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write a model folder atomically; an existing one is replaced."""
    kept = processor.tokenizer if processor.named is None else None
    card = {
        "kind": _KIND,
        "format": FORMAT,
        "version": __version__,
        "model": spec and spec.to_dict(),
        "module": _class_place(model),
        "packages": {
            registry.name_of(c.make): registry.package_of(c.make) for c in _inner_calls(spec)
        },
        "provenance": dict(provenance or {}),
        "metrics": dict(metrics or {}),
        "tokenizer": kept and kept.digest,
    }
    with atomic_folder(folder) as temporary:
        about = {"model": spec.digest() if spec else ""}
        write_tensors(temporary / WEIGHTS, model.state_dict(), about)
        write_json(temporary / CARD, card)
        processor.save(temporary)
        for part in model.modules():
            if isinstance(part, HasFiles):
                part.write_files(temporary / part.own_files)


def open_saved(
    folder: Path, *, into: RetrievalModel | None = None, processor: Processor | None = None
) -> tuple[RetrievalModel, Processor, SavedModelCard]:
    """Open a model folder; nothing in it is executed but constructors of registered modules.

    Args:
        folder: of the model.
        into: the network to load, in place of the one that the folder describes.
        processor: that network's, in place of the folder's.

    Raises:
        ValueError: it is damaged, of another format, calls what a model folder may not call, or
            describes no model and there is none to load it into.
    """
    card = read_card(folder)
    weights, metadata = read_tensors(folder / WEIGHTS, "the weights of a model")
    if metadata.get("model") != (card.model.digest() if card.model else ""):
        raise ValueError(f"{folder / WEIGHTS} and {folder / CARD} belong to different models")
    model = into
    if model is None:
        model, own = _built(card, weights, folder)
        processor = processor or own
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        fits = "the model of" if into is None else f"the {_class_place(into)} that is given for"
        raise ValueError(
            f"{folder / WEIGHTS} does not fit {fits} {folder / CARD} in this version of "
            f"counterfoil (saved with {card.version}): {first}"
        ) from error
    if processor is None:
        processor = Processor.open(folder)
        tokenizer = processor.tokenizer.digest if processor.tokenizer else None
        if card.tokenizer not in (None, tokenizer):
            raise ValueError(
                f"the tokenizer in {folder} is another one than the model was saved with"
            )
    elif processor.named and (saved := Processor.saved_name(folder)) not in ("", processor.named):
        raise ValueError(
            f"{folder} was trained on what the functions named {saved!r} make, and those that are "
            f"given are named {processor.named!r}; give the functions of that name"
        )
    return model.eval(), processor, card


def _built(
    card: SavedModelCard, weights: Mapping[str, Tensor], folder: Path
) -> tuple[RetrievalModel, Processor | None]:
    """The network that a card describes, and the processor that its factory gives it, if any."""
    if card.model is None:
        raise ValueError(
            f"{folder} holds the weights of {card.module}, and nothing says how it is built; {INTO}"
        )
    try:
        with _BoundedBuild(weights, folder / CARD):
            built: Any = _with_own_files(card.model, folder).build()
    except ValueError:
        raise
    except Exception as error:  # constructors raise anything at wrong arguments
        raise ValueError(
            f"{folder / CARD} does not fit this version of counterfoil: {first_line(error)}"
        ) from error
    if isinstance(built, RetrievalModel):
        return built, None
    return built.model, built.processor  # of a factory, which returns a `counterfoil.model.Model`


def _class_place(model: nn.Module) -> str:
    """The class of a network, or of the module that it is made of."""
    kind = type(model.own_module if isinstance(model, RetrievalModel) else model)
    return f"{kind.__module__}:{kind.__qualname__}"


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
    spec = None
    if (written := content.get("model")) is not None:
        try:
            spec = config_from_dict(written, kinds=registry.SAVED)
        except ValueError:
            _check_packages(content.get("packages"), path)
            raise
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
        module=str(content.get("module", "")),
    )


def _check_packages(packages: object, path: Path) -> None:
    """Refuse names of a package that is not here, by the packages that were saved with them."""
    for name, package in packages.items() if isinstance(packages, dict) else ():
        ours = package in ("counterfoil", PAPERS)
        if not ours and not any(name in registry.names(kind) for kind in registry.SAVED):
            raise ValueError(
                f"{path} calls {name!r} of the package {package!r}, which is not installed or has "
                "no such name any more; install it, or import the module that registers the "
                "name (--import MODULE on the command line)"
            )


def _check_calls(spec: Config[Any], where: object) -> None:
    """Refuse calls of anything but modules: a model folder may be untrusted."""
    for call in _inner_calls(spec):
        parent = RetrievalModel if call is spec else nn.Module
        if isinstance(call.make, type) and issubclass(call.make, parent):
            continue
        if registry.name_of(call.make) in registry.added("model"):  # a factory of the user
            continue
        name = getattr(call.make, "__qualname__", call.make)
        if call is spec:
            raise ValueError(f"{where} describes {name}, which is no retrieval model")
        raise ValueError(f"{where} calls {name}, which is no part of a model; the file is refused")


def check_reopens(spec: Config[Any], name: str, *, without_others: bool = False) -> None:
    """Refuse a call that no folder could hold: call it before a training.

    Args:
        spec: the call that builds the model; placeholders may be left.
        name: of the model, for the error.
        without_others: the folder will hold this call as it is, so that pretrained parts must
            carry their configurations.

    Raises:
        ValueError: the call has a class that files may not name, or an argument that no file has.
    """
    try:
        plain = json.loads(json.dumps(spec.to_dict()))
        read = config_from_dict(plain, kinds=registry.SAVED)
        _check_calls(read, name)
        for call in _inner_calls(read) if without_others else ():
            _check_sources(call, Path(CARD))
    except ValueError as error:
        raise ValueError(
            f"{name} could not be opened again from a folder: {error}; build it of "
            "counterfoil's own classes and plain values, or register yours, "
            "@counterfoil.core.registry.register.model('name'), as docs/extending.md shows"
        ) from error


def reopening_call(model: OpenedModel) -> tuple[Config[Any] | None, str]:
    """The call by which a folder of the model will open; None and why if only ``into=`` will.

    Raises:
        ValueError: nothing will: it is ready-made vectors, its weights are no tensors yet, or its
            call builds another model.
    """
    if model.processor is None:
        raise ValueError(
            f"{model.name} has no processor, so it cannot be trained and saved; open a model with "
            "load_model, or give cf.Model(module, preprocess=…, tokenize=…)"
        )
    state = model.model.state_dict()
    for key, value in state.items():
        if not isinstance(value, Tensor) or is_lazy(value):
            raise ValueError(
                f"{model.name} could not be opened again from a folder: {key} is "
                f"a {type(value).__name__}, and a folder holds tensors; give all state as "
                "parameters or buffers, and run a lazy layer once before"
            )
    if model.spec is None:
        return None, f"nothing says how {model.name} is built"
    try:
        check_reopens(model.spec, model.name)
        spec = portable_config(model.spec)
        check_reopens(spec, model.name, without_others=True)
    except ValueError as error:
        return None, str(error)
    if _is_as_loaded(model):
        return spec, ""
    with torch.random.fork_rng(devices=[]):  # a training draws what it did without this
        built = spec.build()
    fresh = built if isinstance(built, nn.Module) else built.model
    wanted, own = ({k: v.shape for k, v in s.items()} for s in (fresh.state_dict(), state))
    if other := sorted(key for key in wanted | own if wanted.get(key) != own.get(key)):
        raise ValueError(
            f"{model.name} could not be opened again from a folder: its spec {model.spec!r} "
            f"builds a model whose {other[0]} is {_shape(wanted, other[0])}, and its module's is "
            f"{_shape(own, other[0])}; give the spec that the module was built by"
        )
    return spec, ""


def _is_as_loaded(model: OpenedModel) -> bool:
    """True if `load_model` built the model by its call, and building it once more takes seconds."""
    spec = model.spec
    if spec is None or not holds_pretrained(spec):
        return False
    if any(hasattr(call.make, OWN_FILES) for call in _inner_calls(spec)):
        return True
    return model.card is not None or "pretrained" in inspect.signature(spec.make).parameters


def portable_config(spec: Config[T]) -> Config[T]:
    """The call with the configurations of pretrained parts in it, in place of their names.

    It builds the model with fresh weights, without reading a folder or the hub.

    Raises:
        ValueError: the configuration of a part cannot be read.
    """
    arguments = {name: _portable(value) for name, value in spec.arguments.items()}
    known = inspect.signature(spec.make).parameters
    if "pretrained" in known:
        arguments["pretrained"] = False
    if {"pretrained", "name", "config"} <= known.keys():
        name = str(arguments.get("name", ""))
        written = _written_config(name, arguments.get("config"))
        arguments |= {"name": public_name(name), "config": written}
    return Config(spec.make, arguments)


def _portable(value: Any) -> Any:
    match value:
        case Config():
            return portable_config(value)
        case Mapping():
            return {name: _portable(inner) for name, inner in value.items()}
        case tuple() | list():
            return type(value)([_portable(inner) for inner in value])
    return value


def public_name(name: str) -> str:
    """A model's name without the folders above it, which mean nothing on another machine."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _written_config(name: str, config: object) -> object:
    """The configuration of a pretrained part as JSON, without the folder that it came from."""
    from counterfoil.models.layers.pretrained import read_config_json

    written = config or read_config_json(name)
    if not isinstance(written, str):
        return written
    plain = parse_json(written, f"the configuration of {name}")
    if not isinstance(plain, dict):
        return written
    plain.pop("_name_or_path", None)
    return json.dumps(plain, sort_keys=True)


def _shape(shapes: Mapping[str, torch.Size], name: str) -> str:
    return str(tuple(shapes[name])) if name in shapes else "not there"


def holds_pretrained(spec: Config[Any]) -> bool:
    """Return True if the constructor of the model or of a part may load weights or files."""
    return any("pretrained" in inspect.signature(c.make).parameters for c in _inner_calls(spec))


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
