"""What the tables of TAGS-DC print; its MS-COCO numbers are over all 5,000 test images.

B and L are the base and large settings. The rows of others are as its Table 1 quotes them;
SCAN's and AOQ's are ensembles of two.
"""

from __future__ import annotations

from typing import Literal

from counterfoil.recipes.published import Published

Numbers = tuple[float, float, float]
Where = Literal["flickr30k-1k", "coco-5k"]


def _row(method: str, dataset: Where, i2t: Numbers, t2i: Numbers, table: int) -> Published:
    models = 2 if method in ("SCAN", "AOQ") else 1
    return Published(method, dataset, i2t, t2i, models, f"TAGS-DC, Table {table}")


TABLE_1 = (
    _row("SCAN", "coco-5k", (50.4, 82.2, 90.0), (38.6, 69.3, 80.4), 1),
    _row("MMCA", "coco-5k", (54.0, 82.5, 90.7), (38.7, 69.7, 80.8), 1),
    _row("AOQ", "coco-5k", (55.1, 83.3, 90.8), (41.1, 71.5, 82.0), 1),
    _row("UNITER+DG", "coco-5k", (51.4, 78.7, 87.0), (39.1, 68.0, 78.3), 1),
    _row("Unicoder-VL", "coco-5k", (62.3, 87.1, 92.8), (46.7, 76.0, 85.3), 1),
    _row("LightningDOT (B)", "coco-5k", (64.6, 87.6, 93.5), (50.3, 78.7, 87.5), 1),
    _row("UNITER (B)", "coco-5k", (64.4, 87.4, 93.1), (50.3, 78.5, 87.2), 1),
    _row("TAGS-DC (B)", "coco-5k", (66.6, 88.6, 94.0), (51.6, 79.1, 87.5), 1),
    _row("CLIP", "coco-5k", (58.4, 81.5, 88.1), (37.8, 62.4, 72.2), 1),
    _row("LightningDOT (L)", "coco-5k", (65.7, 89.0, 93.7), (53.0, 80.1, 88.0), 1),
    _row("UNITER (L)", "coco-5k", (65.7, 88.6, 93.8), (52.9, 79.9, 88.0), 1),
    _row("TAGS-DC (L)", "coco-5k", (67.8, 89.6, 94.2), (53.3, 80.0, 88.0), 1),
    _row("SCAN", "flickr30k-1k", (67.4, 90.3, 95.8), (48.6, 77.7, 85.2), 1),
    _row("MMCA", "flickr30k-1k", (74.2, 92.8, 96.4), (54.8, 81.4, 87.8), 1),
    _row("AOQ", "flickr30k-1k", (72.8, 91.8, 95.8), (55.3, 82.2, 88.4), 1),
    _row("UNITER+DG", "flickr30k-1k", (78.2, 93.0, 95.9), (66.4, 88.2, 92.2), 1),
    _row("Unicoder-VL", "flickr30k-1k", (86.2, 96.3, 99.0), (71.5, 90.9, 94.9), 1),
    _row("LightningDOT (B)", "flickr30k-1k", (86.5, 97.5, 98.9), (72.6, 93.1, 96.1), 1),
    _row("ERNIE-ViL (B)", "flickr30k-1k", (86.7, 97.8, 99.1), (75.1, 93.4, 96.3), 1),
    _row("UNITER (B)", "flickr30k-1k", (85.9, 97.1, 98.8), (72.5, 92.3, 96.1), 1),
    _row("TAGS-DC (B)", "flickr30k-1k", (87.9, 98.1, 99.3), (74.5, 93.3, 96.3), 1),
    _row("CLIP", "flickr30k-1k", (88.0, 98.7, 99.4), (68.7, 90.6, 95.2), 1),
    _row("LightningDOT (L)", "flickr30k-1k", (87.2, 98.3, 99.0), (75.6, 94.0, 96.5), 1),
    _row("ERNIE-ViL (L)", "flickr30k-1k", (89.2, 98.5, 99.2), (76.7, 94.1, 96.7), 1),
    _row("UNITER (L)", "flickr30k-1k", (87.3, 98.0, 99.2), (75.6, 94.1, 96.8), 1),
    _row("TAGS-DC (L)", "flickr30k-1k", (90.6, 98.8, 99.1), (77.3, 94.3, 97.3), 1),
)

TABLE_2 = (
    _row("TAGS w/ WM", "coco-5k", (64.9, 87.8, 93.3), (51.1, 78.9, 87.4), 2),
    _row("TAGS w/ SG", "coco-5k", (64.1, 87.6, 93.4), (50.9, 78.8, 87.3), 2),
    _row("TAGS", "coco-5k", (65.4, 88.4, 93.6), (51.3, 79.0, 87.5), 2),
    _row("TAGS w/ WM", "flickr30k-1k", (85.9, 97.6, 99.1), (74.2, 93.0, 96.1), 2),
    _row("TAGS w/ SG", "flickr30k-1k", (85.5, 97.4, 98.9), (73.3, 92.6, 96.0), 2),
    _row("TAGS", "flickr30k-1k", (87.2, 97.8, 99.2), (74.4, 93.1, 96.1), 2),
)

PUBLISHED = (*TABLE_1, *TABLE_2)

PERPLEXITY = (  # Table 3, by GPT-2
    ("captions", 51.13),
    ("TAGS-DC, written", 87.63),
    ("TAGS-DC, corrected", 70.87),
    ("VSE-C, rules", 292.76),
)
