"""Libraries that only some features need, imported when these are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from counterfoil.core.model_files import check_model_folder


def optional_import(module: str, needs: str) -> Any:
    """Import a module; where it is not installed, the error says what needs it and how to get it.

    Raises:
        ValueError: with the text `needs`, as in 'features of timm need timm: pip install timm'.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(needs) from None


def hub_options(name: str) -> dict[str, bool]:
    """Options of every `from_pretrained` of transformers for a folder or a name on the hub.

    A repository's own code is never run, and a local folder never asks the hub, whatever its files
    name.

    Raises:
        ValueError: a file of the folder may not be read, see `check_model_folder`.
    """
    local = Path(name).is_dir()
    if local:
        check_model_folder(Path(name))
    return {"trust_remote_code": False, "local_files_only": local}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the bars and reports that transformers prints when it loads a model."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without the stop at its end."""
    return (str(error).strip().splitlines() or [repr(error)])[0].rstrip(". ")
