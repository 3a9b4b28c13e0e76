"""What the papers of the hosts print for training with online negatives."""

from __future__ import annotations

from counterfoil.recipes.published import Published

PUBLISHED = (
    Published(
        "VSE++ (ResNet, fine-tuned)", "coco-1k", (64.6, 90.0, 95.7), (52.0, 84.3, 92.0), 1,
        "VSE++, Table 1",
    ),
    Published(
        "VSE++ (ResNet, fine-tuned)", "flickr30k-1k", (52.9, 80.5, 87.2), (39.6, 70.1, 79.5), 1,
        "VSE++, Table 3",
    ),
    Published(
        "SCAN t-i LSE", "flickr30k-1k", (61.1, 85.4, 91.5), (43.3, 71.9, 80.9), 1, "SCAN, Table 1"
    ),
    Published(
        "SCAN t-i AVG", "flickr30k-1k", (61.8, 87.5, 93.7), (45.8, 74.4, 83.0), 1, "SCAN, Table 1"
    ),
    Published(
        "SCAN i-t LSE", "flickr30k-1k", (67.7, 88.9, 94.0), (44.0, 74.2, 82.6), 1, "SCAN, Table 1"
    ),
    Published(
        "SCAN i-t AVG", "flickr30k-1k", (67.9, 89.0, 94.4), (43.9, 74.2, 82.8), 1, "SCAN, Table 1"
    ),
    Published(
        "SCAN t-i AVG + i-t LSE", "flickr30k-1k", (67.4, 90.3, 95.8), (48.6, 77.7, 85.2), 2,
        "SCAN, Table 1",
    ),
    Published(
        "SCAN t-i LSE", "coco-1k", (67.5, 92.9, 97.6), (53.0, 85.4, 92.9), 1, "SCAN, Table 2"
    ),
    Published(
        "SCAN t-i AVG", "coco-1k", (70.9, 94.5, 97.8), (56.4, 87.0, 93.9), 1, "SCAN, Table 2"
    ),
    Published(
        "SCAN i-t LSE", "coco-1k", (68.4, 93.9, 98.0), (54.8, 86.1, 93.3), 1, "SCAN, Table 2"
    ),
    Published(
        "SCAN i-t AVG", "coco-1k", (69.2, 93.2, 97.5), (54.4, 86.0, 93.6), 1, "SCAN, Table 2"
    ),
    Published(
        "SCAN t-i AVG + i-t LSE", "coco-1k", (72.7, 94.8, 98.4), (58.8, 88.4, 94.8), 2,
        "SCAN, Table 2",
    ),
    Published(
        "SCAN i-t LSE", "coco-5k", (46.4, 77.4, 87.2), (34.4, 63.7, 75.7), 1, "SCAN, Table 2"
    ),
    Published(
        "SCAN t-i AVG + i-t LSE", "coco-5k", (50.4, 82.2, 90.0), (38.6, 69.3, 80.4), 2,
        "SCAN, Table 2",
    ),
    Published(
        "BFAN equal + prob", "flickr30k-1k", (68.1, 91.4, 95.9), (50.8, 78.4, 85.8), 2,
        "AOQ, Table 2",
    ),
    Published(
        "BFAN equal + prob", "coco-1k", (74.9, 95.2, 98.3), (59.4, 88.4, 94.5), 2, "AOQ, Table 1"
    ),
    Published(
        "BFAN equal + prob", "coco-5k", (52.9, 82.8, 90.6), (38.3, 67.8, 79.3), 2, "AOQ, Table 1"
    ),
    Published(
        "VSRN, two seeds", "flickr30k-1k", (71.3, 90.6, 96.0), (54.7, 81.8, 88.2), 2,
        "AOQ, Table 2",
    ),
    Published(
        "VSRN, two seeds", "coco-1k", (76.2, 94.8, 98.2), (62.8, 89.7, 95.1), 2, "AOQ, Table 1"
    ),
    Published(
        "VSRN, two seeds", "coco-5k", (53.0, 81.1, 89.4), (40.5, 70.6, 81.1), 2, "AOQ, Table 1"
    ),
)  # fmt: skip
