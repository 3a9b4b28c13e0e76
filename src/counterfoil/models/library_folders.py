"""Folders of sentence-transformers: which model of ours reads them, and their modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterfoil.core.io import read_json

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"


def library_class(folder: Path) -> str | None:
    """Return the name of our class for a folder of sentence-transformers; None for another folder.

    A CLIP or SigLIP alone is none: `counterfoil.models.clip.DualEncoder` reads it.

    Raises:
        ValueError: a file of the folder is damaged.
    """
    config = read_settings(folder / "config.json")
    architectures = config.get("architectures") or [""]
    if not (folder / MODULES).is_file():
        retrieval = str(architectures[0]).startswith("Col")  # ColPali, ColQwen2, ...
        return "MultiVectorEmbedder" if retrieval else None
    kind = str(read_settings(folder / SETTINGS).get("model_type") or "SentenceTransformer")
    kinds = {"SentenceTransformer": "DenseEmbedder", "CrossEncoder": "CrossEncoderModel"}
    kinds |= dict.fromkeys(("MultiVectorEncoder", "ColBERT"), "MultiVectorEmbedder")
    if kind not in kinds:
        raise ValueError(
            f"{folder} is a {kind} of sentence-transformers; give a {', a '.join(kinds)}"
        )
    make = kinds[kind]
    return None if make == "DenseEmbedder" and is_plain_encoder(folder) else make


def encoder_folder(folder: Path) -> Path:
    """Return the folder of a CLIP or SigLIP: the first module's in sentence-transformers.

    Any other folder is returned as it is.
    """
    plain = (folder / MODULES).is_file() and library_class(folder) is None
    return folder / read_modules(folder)[0][1] if plain else folder


def is_plain_encoder(folder: Path) -> bool:
    """Return True for a folder whose modules are a CLIP or SigLIP, normalised at most."""
    modules = read_modules(folder)
    if [kind for kind, _ in modules[1:] if kind != "Normalize"]:
        return False
    config = read_settings(folder / modules[0][1] / "config.json")
    return str(config.get("model_type", "")).startswith(("clip", "siglip"))


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module.

    Raises:
        ValueError: the file is damaged, or names a folder outside.
    """
    path = folder / MODULES
    plain = read_json(path, "modules of sentence-transformers")
    try:
        modules = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in plain]
        first = modules[0]
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    for _, inner in (first, *modules):
        if not (folder / inner).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path} names a folder outside of {folder}; the file is refused")
    return modules


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of settings; {} where there is none."""
    if not path.is_file():
        return {}
    plain = read_json(path, "settings of a model")
    return plain if isinstance(plain, dict) else {}
