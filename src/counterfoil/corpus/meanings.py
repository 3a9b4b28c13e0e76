"""What captions mean: vectors of a sentence encoder, any model of sentence-transformers.

It reads captions alone and sees no picture. Two captions that say the same in other words are near;
so are, for most of them, two that differ in one detail.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.files import read_json

OURS = "sentence_transformers."  # where classes that a folder names have to come from


@final
class Meanings:
    """A sentence encoder.

    Args:
        encoder: folder or name of a model of sentence-transformers, such as all-MiniLM-L6-v2.
        device: where it computes.

    Raises:
        ValueError: sentence-transformers is not installed, there is no such model, or its folder
            brings code of its own.
    """

    def __init__(self, encoder: str, *, device: torch.device | str | None = None) -> None:
        self.encoder = encoder
        self._model = _loaded(encoder, device or "cpu")

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """(T, D) unit vectors of texts, float32 on the CPU; each text is read once."""
        place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        if not place:
            return torch.zeros(0, 1)
        found = self._model.encode(list(place), convert_to_tensor=True, show_progress_bar=False)
        assert isinstance(found, Tensor)
        vectors = normalize(found.float(), dim=1).cpu()
        return vectors[[place[text] for text in texts]]


def _loaded(name: str, device: torch.device | str) -> Any:
    _check(Path(name))
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise ValueError(
            f"the sentence encoder {name!r} needs sentence-transformers: "
            "pip install sentence-transformers"
        ) from None
    try:
        return SentenceTransformer(name, device=str(device)).eval()
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
        raise ValueError(f"{name!r} is no sentence encoder that can be read: {reason}") from error


def _check(folder: Path) -> None:
    """Refuse a folder whose modules are not those of the library.

    Raises:
        ValueError: it has none, or one names a class of its own.
    """
    modules = folder / "modules.json"
    if not folder.is_dir():
        return
    if not modules.is_file():
        raise ValueError(
            f"{folder} has no modules.json, so it is no model of sentence-transformers; save one "
            "there, or name one on the hub"
        )
    plain = read_json(modules, "modules of sentence-transformers")
    for module in plain if isinstance(plain, list) else [plain]:
        kind = module.get("type") if isinstance(module, dict) else module
        if not (isinstance(kind, str) and kind.startswith(OURS)):
            raise ValueError(
                f"{modules} names the class {kind!r}, which is not of sentence-transformers; only "
                "models without code of their own are opened"
            )
