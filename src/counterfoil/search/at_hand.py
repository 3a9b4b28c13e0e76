"""Models of the Hugging Face hub on this machine, and the announcement of a download."""

from __future__ import annotations

from pathlib import Path

from counterfoil.core.console import info
from counterfoil.core.optional import first_line
from counterfoil.loading import HUB_NAME, prefix_of
from counterfoil.models.library_folders import MODULES
from counterfoil.saved import CARD

_SETTINGS = ("config.json", MODULES, CARD)
_WEIGHTS = ("*.safetensors", "*.bin")


def announce_download(name: str) -> None:
    """Say how large the download of a model of the hub is, if it is not on this machine.

    Raises:
        ValueError: the hub has no such model, or cannot be reached; the models at hand are named.
    """
    if Path(name).is_dir() or prefix_of(name) or not HUB_NAME.fullmatch(name) or _is_cached(name):
        return
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        found = HfApi().model_info(name, files_metadata=True)
    except RepositoryNotFoundError:
        raise ValueError(f"{name} is no folder here and no model on the hub; {_choice()}") from None
    except Exception as error:  # the library raises those of its client, and others offline
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else first_line(error)
        raise ValueError(
            f"{name} is not on this machine, and the hub cannot be reached ({reason}); {_choice()}"
        ) from error
    sizes = {Path(one.rfilename): one.size or 0 for one in found.siblings or ()}
    weights = [
        [size for file, size in sizes.items() if file.match(pattern)] for pattern in _WEIGHTS
    ]
    size = sum(next(filter(None, weights), sizes.values()))
    info(
        f"downloading {name} from the Hugging Face hub, {size / 1e6:,.0f} MB, once; it is kept in "
        f"{constants.HF_HUB_CACHE}"
    )


def models_at_hand() -> list[str]:
    """Names of the models of the hub on this machine that read pictures and texts."""
    from huggingface_hub import constants

    folders = sorted(Path(constants.HF_HUB_CACHE).glob("models--*"))
    names = [folder.name.removeprefix("models--").replace("--", "/") for folder in folders]
    return [name for name in names if _is_cached(name) and _reads_both(name)]


def _choice() -> str:
    names = models_at_hand()
    if not names:
        return "no model is at hand: go online once, or name the folder of a model with --model"
    return f"name one with --model or in COUNTERFOIL_MODEL; at hand: {', '.join(names)}"


def _snapshot(name: str) -> Path | None:
    """The folder of a model in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(name, file) for file in _SETTINGS)
    return next((Path(path).parent for path in found if isinstance(path, str)), None)


def _is_cached(name: str) -> bool:
    """Return True if settings and weights of a model are on this machine."""
    folder = _snapshot(name)
    return folder is not None and any(any(folder.rglob(pattern)) for pattern in _WEIGHTS)


def _reads_both(name: str) -> bool:
    """Return True if the settings of a cached model speak of pictures and texts."""
    folder = _snapshot(name)
    assert folder is not None
    if (folder / CARD).is_file():
        return True
    words = [
        (folder / file).read_text("utf-8", "replace")
        for file in _SETTINGS[:2]
        if (folder / file).is_file()
    ]
    return any("vision_config" in text or "CLIPModel" in text for text in words)
