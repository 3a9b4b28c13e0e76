"""A model of your own: any torch module with `encode_image` and `encode_text`."""

import argparse
import tempfile

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import counterfoil as cf
from counterfoil.core.registry import register


class TwoEncoders(nn.Module):
    """Pictures by one linear layer, captions by the mean of their words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.picture, self.words = nn.Linear(3 * 16 * 16, width), nn.Embedding(1000, width)

    def encode_image(self, pixels: Tensor) -> Tensor:
        return self.picture(pixels.flatten(1))  # (N, D); a score is the cosine

    def encode_text(self, ids: Tensor) -> Tensor:
        return self.words(ids).mean(1)


def preprocess(picture: Image.Image) -> Tensor:
    """A picture as a tensor, of one shape for all."""
    return torch.from_numpy(np.asarray(picture.resize((16, 16)), dtype=np.float32) / 255)


def tokenize(captions: list[str]) -> list[list[int]]:
    """Ids of captions, all of one length; else encode_text takes a mask as well."""
    rows = ([sum(map(ord, word)) % 999 + 1 for word in text.split()] for text in captions)
    return [(row + [0] * 40)[:40] for row in rows]


@register.model("two-encoders")
def two_encoders(*, width: int = 32) -> cf.Model:
    """Build it; saved folders call this by name, and `counterfoil --import MODULE` knows it."""
    module = TwoEncoders(width)
    return cf.Model(module, preprocess=preprocess, tokenize=tokenize, name="two-encoders-1")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--smoke", action="store_true", help="the same; this example is always tiny")
parser.parse_args()
data = cf.load_dataset("scenes:images=60")
with tempfile.TemporaryDirectory() as folder:
    model = cf.load_model("two-encoders")
    tuned = cf.Trainer(
        model, loss=cf.losses.InfoNCELoss(), train=data["train"], output=folder, epochs=2, lr=1e-2
    ).train()
    print(cf.evaluate(tuned, data["test"]))
    again = cf.load_model(folder)
    other = cf.load_model(folder, into=two_encoders())  # which needs no registered name
assert (again.encode_texts("a star") == other.encode_texts("a star")).all()
