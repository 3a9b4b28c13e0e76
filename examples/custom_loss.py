"""Losses of your own: a function, a module, a weighted sum, and those of two other libraries."""

import argparse
import tempfile

import torch
from _towers import Towers, tokenize
from pytorch_metric_learning.losses import SupConLoss
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

import counterfoil as cf


def cross_entropy(scores: Tensor, positives: Tensor, temperature: float = 0.07) -> Tensor:
    """Scores are (I, T), positives (I, T) bool: an image may have several captions in a batch."""
    logits = scores / temperature
    true = logits.masked_fill(~positives, -torch.inf)
    to_text = logits.logsumexp(1) - true.logsumexp(1)
    return to_text.mean() + (logits.logsumexp(0) - true.logsumexp(0)).mean()


class LearnedTemperature(nn.Module):
    """The same with a scale that is trained with the model, and saved and resumed with the run."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, scores: Tensor, positives: Tensor, mask: Tensor) -> Tensor:
        # mask is False where a pair is not to count: a caption that says what another one says
        logits = (self.scale * scores).masked_fill(~mask, -torch.inf)
        return cross_entropy(logits, positives, temperature=1)


hinge = cf.losses.SumTripletLoss()
losses = {
    "function": cross_entropy,
    "module": LearnedTemperature(),
    "sum": cf.WeightedSum(terms={"entropy": (1.0, cross_entropy), "hinge": (0.01, hinge)}),
    "pytorch-metric-learning": cf.losses.MetricLearningLoss(SupConLoss(temperature=0.07)),
    "sentence-transformers": cf.losses.SentenceTransformersLoss(MultipleNegativesRankingLoss(None)),
}
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--smoke", action="store_true", help="the same; this example is always tiny")
parser.parse_args()
data = cf.load_dataset("scenes:images=200,features=regions")
for name, loss in losses.items():
    torch.manual_seed(0)
    model = cf.Model(Towers(data.features.width), tokenize=tokenize, name="towers-1")
    with tempfile.TemporaryDirectory() as folder:
        before = cf.evaluate(model, data["test"]).rsum
        cf.Trainer(model, loss=loss, train=data["train"], output=folder, epochs=9, lr=0.01).train()
    print(f"{name}: RSum {before:.0f} before, {cf.evaluate(model, data['test']).rsum:.0f} after")
