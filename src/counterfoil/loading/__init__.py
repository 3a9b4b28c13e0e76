"""Loaders: pretrained models of other libraries, by their name or folder.

A loader is found in the registry by the prefix of a name (``timm:``, ``open_clip:``), by the
library of a folder, or by the ``model_type`` in its ``config.json``; "transformers" opens what is
left, a CLIP or SigLIP. Only the module of the loader that is needed is imported.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from counterfoil.core import registry
from counterfoil.core.config import Config
from counterfoil.core.io import read_json
from counterfoil.core.model_files import check_model_folder
from counterfoil.data.processor import ProcessorConfig
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pretrained import config_of
from counterfoil.models.library_folders import MODULES, library_class

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
OPEN_CLIP_CONFIG = "open_clip_config.json"
_SETTINGS = ["*.json", "*.jinja", "*.txt"]  # what says which kind of model a name is


class Pretrained(ABC):
    """A pretrained model of another library: how it is built, trained, and given its inputs.

    Attributes:
        name: its name or folder.
        untrained: whether some of its weights are random, the same at each opening.
        heads: whether these are heads on pretrained towers, which learn at rates of their own.
    """

    name: str
    untrained: bool = False
    heads: bool = False

    @property
    @abstractmethod
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""

    @property
    @abstractmethod
    def processor(self) -> ProcessorConfig:
        """How it reads images and texts."""

    @abstractmethod
    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training, of what `frozen` and `lora` leave trainable.

        Args:
            frozen: train only adapters behind its vectors, or its heads.
            lora: rank of LoRA adapters on its attention, the only trained weights; 0 for none.

        Raises:
            ValueError: it cannot be trained so.
        """

    def build(self) -> RetrievalModel:
        """The model with its weights."""
        return self.spec.build()


Loader = Callable[..., Pretrained]  # (name, **options), with the options that were given


def load_pretrained(name: str, **options: Any) -> Pretrained:
    """The pretrained model of a name or folder; its weights are read when it is built.

    Args:
        name: the name or folder.
        options: ``long_captions``, ``weights``, ``device_map`` and ``tokens`` of
            `counterfoil.model.load_model`; those that are None, 0 or False are left out.

    Raises:
        ValueError: there is none, it is damaged, or an option is not for it.
    """
    loader: Loader = registry.find("loader", loader_of(name))
    return loader(name, **{key: value for key, value in options.items() if value})


def loader_of(name: str) -> str:
    """The name of the loader of a model.

    Of a name that is not in the hub's cache the settings are downloaded, which say what it is.
    """
    if prefix := prefix_of(name):
        return prefix
    if name in registry.added("model"):
        return "registered"
    if sentence_transformers_folder(name):
        return "sentence_transformers"
    if is_open_clip(name):
        return "open_clip"
    kind = config_of(name).model_type
    known = kind in registry.names("loader") or registry.is_absent("loader", kind)
    return kind if known else "transformers"


def prefix_of(name: str) -> str:
    """The loader that the prefix of a name asks for, as in ``timm:``; "" for none."""
    prefix, colon, _ = name.partition(":")
    return prefix if colon and prefix in registry.names("loader") else ""


def is_open_clip(name: str) -> bool:
    """Return True for a name with open_clip's prefix, and a folder that only open_clip opens."""
    folder = Path(name)
    if prefix_of(name) == "open_clip":
        return True
    if not (folder / OPEN_CLIP_CONFIG).is_file():
        return False
    if not (folder / "config.json").is_file():
        return True
    config = read_json(folder / "config.json", "the configuration of a model")
    return not (isinstance(config, dict) and "model_type" in config)  # timm has such a file, too


def is_pretrained_folder(folder: Path) -> bool:
    """Return True if a folder holds the configuration of a model of another library."""
    return any((folder / file).is_file() for file in ("config.json", MODULES, OPEN_CLIP_CONFIG))


def starts_untrained(name: str) -> bool:
    """Return True if a model of this name has random weights, so that it has to be trained."""
    return bool(prefix_of(name)) and load_pretrained(name).untrained


def sentence_transformers_folder(name: str) -> Path | None:
    """The folder of a model of sentence-transformers, also of a name on the hub; None for others.

    A CLIP or SigLIP alone is another, see `library_class`.
    """
    folder = _settings_folder(name)
    return folder if folder is not None and library_class(folder) else None


def _settings_folder(name: str) -> Path | None:
    """The folder that says of what kind a model is; None if sentence-transformers knows no such."""
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    if Path(name).is_dir():
        check_model_folder(Path(name))
        return Path(name)
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
    return Path(cached).parent if isinstance(cached, str) else None


def refuse_large(name: str, options: Mapping[str, Any]) -> None:
    """Refuse the options that only a model of sentence-transformers has.

    Raises:
        ValueError: there are some.
    """
    if large := [option for option in options if option != "long_captions"]:
        raise ValueError(
            f"{', '.join(large)}: these are for a model of sentence-transformers, and {name} is "
            "none; leave them out"
        )
