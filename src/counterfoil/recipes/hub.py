"""Models of this library on the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from counterfoil.train.saved import CARD

FILES = (CARD, "*.safetensors", "*.json", "pieces/*", "README.md")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def fetched(name: str, *, revision: str | None = None) -> Path | None:
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


def pushed(folder: Path, name: str, *, private: bool, message: str) -> str:
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
