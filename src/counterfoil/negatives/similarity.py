"""Similarity of captions in meaning, without their pictures.

`SentenceEncoder` wraps any model of sentence-transformers. Captions that say the same in other
words are near each other; but with most encoders so are two that differ in one detail.
`CaptionSpace` is the latent semantic space of LSEH: TF-IDF and a truncated SVD.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil import __version__
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.config import parse_literal
from counterfoil.core.io import read_json
from counterfoil.core.optional import first_line, hub_options, optional_import
from counterfoil.core.types import Batch, Needs
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.models.layers.pooling import check_positive
from counterfoil.negatives.sources import NegativeSource

OURS = "sentence_transformers."  # package of the classes that a model folder may name


@final
class SentenceEncoder:
    """A sentence encoder of sentence-transformers.

    Args:
        encoder: folder or name of the model, such as all-MiniLM-L6-v2.
        device: where to compute.

    Raises:
        ValueError: sentence-transformers is not installed, there is no such model, or its folder
            brings code of its own.
    """

    def __init__(self, encoder: str, *, device: torch.device | str | None = None) -> None:
        self.encoder = encoder
        self._model = _load_encoder(encoder, device or "cpu")

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Encode texts as (T, D) unit vectors, float32 on the CPU; equal texts are encoded once."""
        place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        if not place:
            return torch.zeros(0, 1)
        encoded = self._model.encode(list(place), convert_to_tensor=True, show_progress_bar=False)
        assert isinstance(encoded, Tensor)
        vectors = normalize(encoded.float(), dim=1).cpu()
        return vectors[[place[text] for text in texts]]


def _load_encoder(name: str, device: torch.device | str) -> Any:
    _check_folder(Path(name))
    needs = (
        f"the sentence encoder {name!r} needs sentence-transformers: "
        "pip install sentence-transformers"
    )
    library = optional_import("sentence_transformers", needs)
    try:
        return library.SentenceTransformer(name, device=str(device), **hub_options(name)).eval()
    except Exception as error:  # libraries raise anything at damaged files
        reason = first_line(error)
        raise ValueError(f"{name!r} is no sentence encoder that can be read: {reason}") from error


def _check_folder(folder: Path) -> None:
    """Refuse a folder that has no modules of the library, or names a class of its own."""
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


# The latent semantic space of captions: TF-IDF, then a truncated SVD.
#
# Two captions are near there if they use words that often occur together, not only the same ones.
# Captions are lower-cased, split into words of letters, cleared of function words and stemmed by
# Porter's rules; each word weighs ``count * (1 + log((1 + T) / (1 + captions with the word)))``,
# and a caption has length 1 before the SVD.


_LETTERS = re.compile(r"[a-z]+")
FUNCTION_WORDS = frozenset(
    _LETTERS.findall(
        """a about above after again against all along also although am among an and another any are
    aren around as at away back be because been before behind being below beside between both but by
    can cannot could couldn did didn do does doesn doing don down during each either else etc ever
    every few for from further had hadn has hasn have haven having he her here hers herself him
    himself his how however if in inside into is isn it its itself just ll many may me might mine
    more most much must my myself near neither next no nor not now of off often on once one only
    onto or other others our ours ourselves out outside over own per re same shan she should
    shouldn since so some still such than that the their theirs them themselves then there these
    they this those though through to together too toward towards under until up upon us very was
    wasn we were weren what when where whether which while who whom whose why will with within
    without won would wouldn yet you your yours yourself yourselves"""
    )
)


@final
@dataclass(frozen=True, kw_only=True)
class LatentSpaceConfig:
    """Settings of the latent space; the defaults are those of LSEH.

    Attributes:
        components: dimensions of the space, K; fewer if there are fewer captions or words.
        passes: power iterations of the SVD.
        seed: of its initial directions.
        stem: reduce words to their stems.

    Raises:
        ValueError: less than one dimension or pass.
    """

    components: int = 400
    passes: int = 100
    seed: int = 122
    stem: bool = True

    def __post_init__(self) -> None:
        check_positive(components=self.components, passes=self.passes)


def latent_vectors(texts: Sequence[str], config: LatentSpaceConfig) -> Tensor:
    """Return (T, K) float32 vectors of the captions; zero for one without content words.

    Their inner products approximate those of the TF-IDF vectors. Departs from the authors' code
    (https://github.com/yangong23/VSEnetworksLSEH) in: one list of function words instead of two
    that are downloaded or shipped with other libraries.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    from sklearn.decomposition import TruncatedSVD

    weights = tf_idf(texts, stem=config.stem)
    width = min(config.components, *weights.shape)
    # Randomised, not Lanczos: ARPACK restarts from a state of its own where singular values are
    # equal, and two processes would get other points. Signs are fixed by scikit-learn.
    svd = TruncatedSVD(width, n_iter=config.passes, random_state=config.seed)
    return torch.from_numpy(svd.fit_transform(weights).astype(np.float32))


def check_captions(texts: Sequence[str], config: LatentSpaceConfig) -> None:
    """Raise the errors of `latent_vectors` without computing it."""
    first = next((text for text in texts if _content_words([text], stem=False)[0]), None)
    tf_idf(list(texts) if first is None else [first], stem=config.stem)


def tf_idf(texts: Sequence[str], *, stem: bool) -> Any:
    """Return the (T, V) sparse TF-IDF weights of the captions (CSR), rows of length 1 or 0.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = _content_words(texts, stem=stem)
    if not any(words):
        raise ValueError(
            f"none of the {len(texts):,} captions has a word that says something, so their "
            "semantics cannot be compared; name data with captions"
        )
    return TfidfVectorizer(analyzer=list).fit_transform(words)  # captions are lists of words here


def latent_similarity(points: Tensor, *, cosine: bool = False) -> Tensor:
    """Return the (N, N) similarity of (N, K) captions, with the largest of each row at 1.

    LSEH divides inner products by the largest of each row, so the matrix is not symmetric; a zero
    row stays zero. `cosine` normalises the points first.
    """
    points = normalize(points, dim=1) if cosine else points
    inner = points @ points.T
    most = inner.amax(1, keepdim=True)
    return inner / most.masked_fill(most == 0, 1)


def _content_words(texts: Iterable[str], *, stem: bool) -> list[list[str]]:
    """Return the words of each caption without function words and single letters."""
    split = [[w for w in _LETTERS.findall(t.lower()) if w not in FUNCTION_WORDS] for t in texts]
    stems = _stems({word for words in split for word in words}) if stem else {}
    stemmed = ([stems.get(word, word) for word in words] for words in split)
    return [[word for word in words if len(word) > 1] for words in stemmed]


def _stems(words: Iterable[str]) -> dict[str, str]:
    needs = (
        'stems of words need snowballstemmer: pip install "counterfoil[stem]", or set stem to false'
    )
    library = optional_import("snowballstemmer", needs)
    porter: Callable[[str], str] = library.stemmer("porter").stemWord
    return {word: porter(word) for word in words}


POINTS = "points.npy"

Measure = Literal["inner", "cosine"]


@final
class CaptionSpaceManifest(ArtifactManifest):
    """Provenance of a `CaptionSpace`, so that it is never read for other data.

    Attributes:
        corpus: fingerprint of the data set whose text rows the points stand for.
        split: its split, as in "train".
        text_count: texts, T.
        width: dimensions of a point, K; for the other fields see `LatentSpaceConfig`.
    """

    corpus: str
    split: str
    text_count: int = Field(ge=1)
    width: int = Field(ge=1)
    components: int = Field(ge=1)
    passes: int = Field(ge=1)
    seed: int
    stem: bool


SPACE = ArtifactFormat(
    name="points of captions",
    manifest=CaptionSpaceManifest,
    remedy="make them again",
    origin="was made from the captions of",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CaptionSpace:
    """Points of all captions of a data set, by text row.

    On disk a folder: ``manifest.json`` and ``points.npy`` (T, K) float32, which stays mapped.
    """

    manifest: CaptionSpaceManifest
    points: npt.NDArray[np.float32]

    @classmethod
    def of(cls, dataset: ImageTextDataset, config: LatentSpaceConfig) -> Self:
        """Compute the points of a data set.

        Raises:
            ValueError: it has no captions, or the stemmer is not installed.
        """
        points = latent_vectors(dataset.texts, config).numpy()
        manifest = CaptionSpaceManifest(
            corpus=dataset.fingerprint,
            split=dataset.split_name,
            text_count=points.shape[0],
            width=points.shape[1],
            version=__version__,
            **asdict(config),
        )
        return cls(manifest, points)

    def save(self, folder: Path) -> None:
        """Write the folder, whole or not at all; older ones there are replaced.

        Raises:
            ValueError: something else is there.
        """
        SPACE.save(folder, self.manifest, {POINTS: self.points})

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Read a folder and check all of it.

        Raises:
            ValueError: no points, damaged, of another data set or of a newer version.
        """
        stored = SPACE.open(folder, fingerprint=fingerprint)
        shape = (stored.manifest.text_count, stored.manifest.width)
        points = stored.array(
            POINTS, shape=shape, dtype=np.float32, content=SPACE.name, finite=True
        )
        return cls(stored.manifest, points)

    def take(self, rows: Tensor) -> Tensor:
        """Return the (N, K) points of these text rows."""
        return torch.from_numpy(np.array(self.points[rows.cpu().numpy()]))


@final
class CaptionSimilarity(NegativeSource):
    """Soft targets by the similarity of captions: an image stands for its anchor captions.

    LSEH (Gong and Cosma, Pattern Recognition 2023): row i holds the similarity of each caption of
    the batch to the caption of image i, divided by the largest of the row; both directions of a
    loss read the same matrix. An image with several anchor captions has the mean of their rows,
    the expected value for one of them. The values are shares of a margin, not scores; see
    `counterfoil.papers.compared.losses`.

    A pair that is true by id but counts as wrong, as with "diagonal" positives, is at -inf.

    Args:
        space: points of the captions.
        measure: "inner", or "cosine", for which long captions do not weigh more.

    Raises:
        ValueError: another measure.
    """

    gives = Needs(targets=True)

    def __init__(self, *, space: CaptionSpace, measure: Measure = "inner") -> None:
        self.space, self.measure = space, parse_literal(Measure, measure, "a measure of nearness")

    def targets(self, batch: Batch) -> Tensor:
        """Return the (I, T) similarity of each anchor text to the captions of each anchor image."""
        device = batch.device
        images, texts = batch.block
        image, text = batch.anchors.image.cpu(), batch.anchors.text.cpu()
        near = latent_similarity(
            self.space.take(batch.text_rows[:texts]).to(device),
            cosine=self.measure == "cosine",
        )
        describes = torch.zeros(images, texts).index_put_((image, text), torch.tensor(1.0))
        targets = (describes / describes.sum(1, keepdim=True)).to(device) @ near
        text_to_image = torch.full((texts,), -1).index_put_((text,), batch.image_rows[image])
        same = (batch.image_rows[:images].unsqueeze(1) == text_to_image).to(device)
        return targets.masked_fill(same & ~batch.positive, -torch.inf)
