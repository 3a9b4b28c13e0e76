"""A model of your own: two encoders and a score; every loss, miner and metric works with it."""

import argparse
import tempfile
from typing import final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import counterfoil as cf
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.pooling import ImageTower, TextTower
from counterfoil.models.layers.towers import GRU, Regions


@final
class LateInteraction(cf.RetrievalModel):
    """Mean over words of the best region (ColBERT's MaxSim over image regions)."""

    def __init__(self, *, image: ImageTower, text: TextTower) -> None:
        super().__init__()
        self.image, self.text = image, text

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        regions: Embeddings = self.image(images)
        return regions

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        words: Embeddings = self.text(texts)
        return words

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        affinity = texts.tokens @ images.tokens.mT  # (P, words, regions)
        best = affinity.masked_fill(~images.mask.unsqueeze(1), float("-inf")).amax(2)
        weight = texts.mask / texts.mask.sum(1, keepdim=True)
        return best.where(texts.mask, 0).mul(weight).sum(1)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--smoke", action="store_true", help="the same; this example is always tiny")
parser.parse_args()
torch.manual_seed(0)
model = LateInteraction(image=Regions(features=5, width=8), text=GRU(words=9, width=8)).eval()
mask = torch.arange(3) < torch.tensor([3, 1, 2])[:, None]  # items of 3, 1 and 2 tokens
images = model.encode_images(ModalityBatch(torch.arange(3), torch.randn(3, 3, 5), mask))
texts = model.encode_texts(ModalityBatch(torch.arange(3), torch.randint(4, 9, (3, 3)), mask))
scores = model.score_matrix(images, texts)
print(scores)

# A model folder builds classes of counterfoil only: weights of this one are kept as a state dict.
with tempfile.TemporaryDirectory() as folder:
    save_file(model.state_dict(), f"{folder}/weights.safetensors")
    again = LateInteraction(image=Regions(features=5, width=8), text=GRU(words=9, width=8)).eval()
    again.load_state_dict(load_file(f"{folder}/weights.safetensors"))
assert torch.equal(again.score_matrix(images, texts), scores)
