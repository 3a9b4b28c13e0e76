"""Rankings of a model as TREC runs, with what is true as qrels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterfoil.core.io import atomic_folder, ensure_absent, ensure_writable_folder
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.export.negatives import ExportItem, ranked_groups, write_runs
from counterfoil.model import Model
from counterfoil.negatives.store import TO_IMAGE, TO_TEXT
from counterfoil.negatives.tables import positive_rows
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores

DEPTH = 100


def export_rankings(
    models: Sequence[Model], folder: Path, dataset: ImageTextDataset, *, depth: int = DEPTH
) -> list[str]:
    """Rank all texts for every image and all images for every text, and write both, atomically.

    ``DIRECTION.run`` has the `depth` best of every query that has an answer, ``DIRECTION.qrels``
    its answers, extra positives too. Recalls of the two are those of `evaluate`.

    Args:
        models: whose mean score ranks.
        folder: to write; must not exist yet.
        dataset: the split.
        depth: length of the lists.

    Returns:
        A line of text for each file.

    Raises:
        ValueError: the folder exists, or a model cannot encode the data.
    """
    ensure_absent(folder)
    ensure_writable_folder(folder)
    images, texts = len(dataset), len(dataset.texts)
    lists = TopK("image", images, min(depth, texts)), TopK("text", texts, min(depth, images))
    stream_scores([model.embed(dataset) for model in models], lists)
    image, text = (
        [ExportItem(id_, id_) for id_ in ids].__getitem__
        for ids in (dataset.image_ids, dataset.text_ids)
    )
    of_images, of_texts = positive_rows(dataset)
    groups = {
        TO_TEXT: ranked_groups(image, text, of_images, lists[0].rows, lists[0].scores),
        TO_IMAGE: ranked_groups(text, image, of_texts, lists[1].rows, lists[1].scores),
    }
    with atomic_folder(folder) as temporary:
        return write_runs(groups, temporary, "ranked")
