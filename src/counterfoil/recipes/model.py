"""A model that can be used: opened from a folder, by a Hugging Face name, or ready-made vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch
from PIL import Image
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import CorpusLens, FeatureEye, Lens, PixelEye
from counterfoil.corpus.words import Pieces
from counterfoil.engine.encode import encode_images, encode_texts
from counterfoil.engine.kept import weights_digest
from counterfoil.engine.tiles import Member
from counterfoil.engine.vectors import kept_vectors, on_vectors
from counterfoil.matcher import Matcher
from counterfoil.models.adapted import Adapted
from counterfoil.models.blocks.open_clip import CONFIG
from counterfoil.models.blocks.open_clip import PREFIX as OPEN_CLIP
from counterfoil.models.blocks.pretrained import config_of, encoder_folder, picture_format
from counterfoil.models.blocks.timm_library import PREFIX as TIMM
from counterfoil.models.clip import DualEncoder, longest_text
from counterfoil.models.open_clip import OpenClip
from counterfoil.models.vectors import Vectors
from counterfoil.negatives.store import Source
from counterfoil.recipes.hub import fetched
from counterfoil.recipes.identifying import identity_of
from counterfoil.recipes.seeing import seen_once
from counterfoil.records import Encoded
from counterfoil.spec import Spec, of
from counterfoil.train.saved import CARD, Card, load_model

VECTORS = "vectors"
MODEL = "model"


@final
@dataclass(frozen=True, eq=False)
class Model:
    """A matcher and what it sees.

    Attributes:
        matcher: the model.
        lens: what it sees; None for ready-made vectors, whose width is the corpus's.
        name: what the user called it.
        spec: the call that builds it.
        card: what is known about it, where it was saved.
    """

    matcher: Matcher
    lens: Lens | None
    name: str
    spec: Spec[Matcher] | None = None
    card: Card | None = field(default=None)

    def on(self, corpus: Corpus) -> CorpusLens:
        """What it sees of a corpus."""
        if self.lens is not None:
            if isinstance(self.matcher, Adapted):
                return on_vectors(self.matcher.body, self.lens.on(corpus))
            return seen_once(self.matcher, self.lens).on(corpus)
        if corpus.features is None:
            raise ValueError(f"{corpus.name} has no vectors of images to compare")
        return Lens(FeatureEye(corpus.features.width), None).on(corpus)

    def member(self, corpus: Corpus) -> Member:
        """The model with all images and texts of a corpus encoded.

        Raises:
            ValueError: the corpus has no images or no texts.
        """
        if not len(corpus) or not len(corpus.texts):
            raise ValueError(
                f"{corpus.name} ({corpus.part}) has {len(corpus)} images and {len(corpus.texts)} "
                "texts; at least one of each is needed"
            )
        lens = self.on(corpus)
        pair = isinstance(self.matcher, DualEncoder | OpenClip)
        kept = kept_vectors(self.matcher, lens) if pair else None
        images, texts = kept or (
            encode_images(self.matcher, lens.images, len(corpus)),
            encode_texts(self.matcher, lens.texts, len(corpus.texts)),
        )
        return Member(self.matcher, images, texts)

    @torch.inference_mode()
    def encode(self, items: Sequence[str | Path | Image.Image]) -> Encoded:
        """Encode captions, or pictures and their paths; a `str` is a caption.

        Raises:
            ValueError: nothing or a mixture was given, or the model cannot see or read bare items.
        """
        from counterfoil.corpus.pictures import open_picture

        if self.lens is None:
            raise ValueError("ready-made vectors have no encoder; give a model folder or name")
        captions = [item for item in items if isinstance(item, str)]
        pictures = [
            open_picture(item) if isinstance(item, Path) else item
            for item in items
            if not isinstance(item, str)
        ]
        if bool(captions) == bool(pictures):
            raise ValueError("give captions (str) or pictures (paths or PIL images), not both")
        if any(part.training for part in self.matcher.modules()):  # else many are set in vain
            self.matcher.eval()
        device = next(self.matcher.parameters()).device
        if captions:
            return self.matcher.encode_texts(self.lens.read(captions).to(device))
        return self.matcher.encode_images(self.lens.see(pictures).to(device))

    @torch.inference_mode()
    def score(self, picture: str | Path | Image.Image, captions: Sequence[str]) -> Tensor:
        """(N,) how well each caption describes a picture, or that at a path; higher is better."""
        picture = Path(picture) if isinstance(picture, str) else picture
        return self.matcher.grid(self.encode([picture]), self.encode(captions))[0].float().cpu()

    @staticmethod
    def from_pretrained(name: str | Path, *, revision: str | None = None) -> Model:
        """A saved or pretrained model.

        Args:
            name: what `open_model` opens, or the name of a model that was pushed to the hub.
            revision: of a model that was pushed; None for the newest.

        Raises:
            ValueError: there is no such model, or it is damaged.
        """
        return open_model(name, revision=revision)

    def save_pretrained(self, folder: str | Path, *, evaluations: Sequence[Path] = ()) -> None:
        """Write a folder that opens anywhere, with a card; see `counterfoil.recipes.sharing.save`.

        Raises:
            ValueError: something is there, ready-made vectors, or a file that is no evaluation.
        """
        from counterfoil.recipes import sharing

        sharing.save(self, Path(folder), evaluations=evaluations)

    def push_to_hub(
        self,
        name: str,
        *,
        evaluations: Sequence[Path] = (),
        private: bool = True,
        message: str = "A model of counterfoil",
    ) -> str:
        """Save the model on the Hugging Face hub; its address.

        Args:
            name: as in "user/model"; what is there gets a new version.
            evaluations: files that ``counterfoil evaluate --out`` wrote, for the card.
            private: whether a new repository is seen by its owner only.
            message: of the commit.

        Raises:
            ValueError: the hub does not take it, ready-made vectors, or no evaluation.
        """
        from counterfoil.recipes import sharing

        return sharing.push(self, name, evaluations=evaluations, private=private, message=message)

    def source(self) -> Source:
        """What the manifest of mined lists says of it."""
        spec = self.spec.digest() if self.spec else ""
        return Source(
            matcher=repr(self.spec),
            spec=spec,
            checkpoint=self.digest(),
            identity=self.identity(),
        )

    def identity(self) -> str:
        """Sixteen hex digits of all that it makes of images and texts, wherever it lies."""
        return identity_of(self.matcher, self.spec, self.lens)

    def digest(self) -> str:
        """Sixteen hex digits of the weights."""
        return weights_digest(self.matcher)


def identity(name: str | Path) -> str:
    """Sixteen hex digits of what lies in a model's folder, or the name of one that has none.

    Raises:
        ValueError: there is a folder, and no model in it.
    """
    folder = _folder(Path(name))
    if folder is None:
        return str(name)
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def open_model(name: str | Path, *, revision: str | None = None) -> Model:
    """A model to use.

    Args:
        name: a model folder, a training stage's folder, the name of a model that was pushed to the
            hub, the name or folder of a Hugging Face CLIP, SigLIP, ViLT or BLIP-ITM, the folder of
            a CLIP of sentence-transformers, ``open_clip:`` and a name or folder that open_clip
            knows, two towers to be trained as in ``timm:resnet50+bert-base-uncased``, or "vectors"
            for corpora that are ready-made embeddings.
        revision: of a model that was pushed to the hub; None for the newest.

    Raises:
        ValueError: it is none of these, or damaged.
    """
    if str(name) == VECTORS:
        return Model(Vectors(), None, VECTORS, of(Vectors))
    if str(name).startswith((OPEN_CLIP, TIMM)):
        return _pretrained(str(name))
    folder = _folder(Path(name)) or fetched(str(name), revision=revision)
    if folder is None and revision:
        raise ValueError(
            f"{name} at revision {revision!r} is no model that was pushed to the hub by counterfoil"
        )
    if folder is None or not (folder / CARD).is_file():
        return _pretrained(str(folder or name))
    saved = load_model(folder, device=world.device())
    return Model(saved.matcher, saved.lens, str(name), saved.card.model, saved.card)


def _folder(path: Path) -> Path | None:
    """Where a model lies; None where the name is none of a folder."""
    for folder in (path, path / MODEL):
        if (folder / CARD).is_file():
            return folder
    if not path.is_dir():
        return None
    if (inner := encoder_folder(path)) != path:
        return inner
    if not any((path / file).is_file() for file in ("config.json", CONFIG)):
        raise ValueError(
            f"{path} holds no model: neither {CARD} nor a Hugging Face config.json nor open_clip's "
            f"{CONFIG} is there; was its training finished?"
        )
    return path


def _pretrained(name: str) -> Model:
    from counterfoil.recipes.pairs import of_open_clip

    if name.startswith(TIMM) or of_open_clip(name):
        return _pair(name)
    match config_of(name).model_type:
        case "vilt":
            return _vilt(name)
        case "blip":
            return _blip(name)
    return _pair(name)


def _pair(name: str) -> Model:
    """What is drawn at random is the same at each opening."""
    from counterfoil.core.console import warn
    from counterfoil.recipes.pairs import pair_of

    pair = pair_of(name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        matcher = pair.spec.build()
    if pair.drawn:
        warn(f"{name}: weights that its name does not tell are random; it has to be trained")
    return Model(matcher.to(world.device()).eval(), pair.lens.made(), name, pair.spec)


def _vilt(name: str) -> Model:
    """Its pictures keep their shape, and sides are multiples of a patch."""
    from counterfoil.models.vilt_public import public_vilt

    tokenizer, form = Pieces(name, longest=longest_text(name)), picture_format(name)
    found = public_vilt(name, mask=tokenizer.mask)
    patch = found.matcher.arguments["patch"]
    eye = PixelEye(form.size, form.mean, form.deviation, divisor=patch)
    matcher = found.build().to(world.device())
    return Model(matcher, Lens(eye, tokenizer), name, found.matcher)


def _blip(name: str) -> Model:
    from counterfoil.models.blip_public import public_blip

    tokenizer, form = Pieces(name, longest=longest_text(name)), picture_format(name)
    found = public_blip(name, mask=tokenizer.mask)
    eye = PixelEye(form.size, form.mean, form.deviation, form.crop)
    matcher = found.build().to(world.device())
    return Model(matcher, Lens(eye, tokenizer), name, found.matcher)
