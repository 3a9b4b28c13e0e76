"""Two small encoders of one's own, of the regions of scenes, which train in seconds."""

from torch import Tensor, nn


class Towers(nn.Module):
    """The mean of an image's regions, and that of a caption's words."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.image, self.words = nn.Linear(features, 64), nn.Embedding(1000, 64)

    def encode_image(self, regions: Tensor, mask: Tensor) -> Tensor:
        mask = mask.unsqueeze(2)  # (N, R, 1), False behind an image's last region
        return (self.image(regions) * mask).sum(1) / mask.sum(1)

    def encode_text(self, ids: Tensor) -> Tensor:
        return self.words(ids).mean(1)


def tokenize(captions: list[str]) -> list[list[int]]:
    """Ids of words, in rows of one length."""
    rows = ([sum(map(ord, word)) % 999 + 1 for word in text.split()] for text in captions)
    return [(row + [0] * 40)[:40] for row in rows]
