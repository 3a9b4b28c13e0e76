"""Is it there at all? Probabilities of `counterfoil.search.calibrate` against plain thresholds.

``python -m benchmarks.calibration MODEL DATA [--features F] [--crowd FILE] [--figure SVG]`` fits on
the dev split and measures on test. Every caption is asked twice: of all images, and of those that
it does not describe. Scenes know which these are; of other data they are the captions' own images
on test, those of which most of the crowd says so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.data.corrections import read_crowd_votes
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import truths
from counterfoil.model import Model, load_model
from counterfoil.search.calibrate import fit_calibration, labelled_hits

ACCEPTED = (0.01, 0.05, 0.10, 0.20)  # of absent queries
BINS = 10

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def vectors(model: Model, part: ImageTextDataset) -> tuple[Tensor, Tensor]:
    """Texts and images."""
    embedded = model.embed(part)
    return embedded.texts.tokens[:, 0].float().cpu(), embedded.images.tokens[:, 0].float().cpu()


def matching(part: ImageTextDataset, crowd: Path | None, *, scenes: bool) -> Tensor:
    """(T, I) bool, images that a caption describes."""
    if scenes:
        return truths(graphs(part), list(part.texts)).T.bool()
    own = part.text_to_image.unsqueeze(1) == torch.arange(len(part))
    if crowd is None:
        return own
    votes = read_crowd_votes(crowd, part)
    yes = votes.yes > votes.no
    own[votes.texts[yes], votes.images[yes]] = True
    return own


def kept_at(score: Array, true: Mask, absent: Mask, share: float) -> float:
    """Share of true first results kept by the threshold that accepts `share` of absent queries."""
    threshold = np.quantile(score[absent], 1 - share)
    return float((score[true] > threshold).mean())


def main() -> None:
    """Print the rows of the table, and draw the calibration curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--features")
    parser.add_argument("--crowd", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    data = load_dataset(given.data, features=given.features)
    model, scenes = load_model(given.model), given.data.startswith("scenes")
    sides = {
        name: (*vectors(model, data[name]), matching(data[name], crowd, scenes=scenes))
        for name, crowd in (("dev", None), ("test", given.crowd))
    }
    fitted = fit_calibration(*sides["dev"])
    features, labels = labelled_hits(*sides["test"], count=1)
    probability = fitted.from_features(features).numpy()
    true = labels.astype(bool)
    absent = np.arange(len(true)) >= len(true) // 2
    print(f"{given.data}: {len(true) // 2} captions, first result true of {true.sum()}; {fitted}")
    rules = {
        "plain score": features[:, 2],
        "z": features[:, 0],
        "surprise": features[:, 1],
        "probability": probability,
    }
    for name, score in rules.items():
        kept = " | ".join(f"{100 * kept_at(score, true, absent, a):.1f} %" for a in ACCEPTED)
        print(f"| {name} | {kept} |")
    places = np.minimum((probability * BINS).astype(int), BINS - 1)
    bins = [places == number for number in range(BINS)]
    known = [(probability[b].mean(), true[b].mean(), b.sum()) for b in bins if b.any()]
    error = sum(n * abs(p - t) for p, t, n in known) / len(true)
    print(f"expected calibration error {100 * error:.1f} points")
    for said, share, count in known:
        print(f"| {said:.2f} | {share:.2f} | {count} |")
    sure = probability >= 0.5
    print(
        f"at 0.5: {100 * sure[absent].mean():.1f} % false accepts, {100 * sure[true].mean():.1f} % "
        f"of true kept, {100 * true[sure].mean():.1f} % of the accepted true"
    )
    if given.figure:
        draw(known, given.figure)


def draw(known: list[tuple[float, float, int]], path: Path) -> None:
    """Draw the calibration curve."""
    from matplotlib.figure import Figure

    figure = Figure((4.2, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    axes.plot([p for p, _, _ in known], [t for _, t, _ in known], marker="o", color="#3f51b5")
    axes.set(xlabel="probability of the first result", ylabel="share that is true")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
