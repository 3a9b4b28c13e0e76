"""``counterfoil explain``: one caption, or a whole data set, most suspicious captions first."""

from __future__ import annotations

import heapq
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, final

from PIL import Image

from counterfoil import world
from counterfoil.core.console import info, output
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.folder import LISTS, read_folder
from counterfoil.corpus.pictures import is_picture_name, open_picture
from counterfoil.evaluate.explain import doubts_words
from counterfoil.evaluate.explain_page import ExplainedCard
from counterfoil.evaluate.explanation import Explanation
from counterfoil.files import check_file, replacing, write_json
from counterfoil.recipes import explain_shown
from counterfoil.recipes.explain import (
    ExplainPlan,
    Rank,
    explain,
    explain_corpus,
    image_row,
    lacking,
)
from counterfoil.recipes.explain_pages import (
    headline,
    made_page,
    measure,
    shown_image,
    summary,
    write_page,
)
from counterfoil.recipes.explained_parts import ExplainedParts
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.run import Source


@final
@dataclass(frozen=True, slots=True)
class Places:
    """Where results go besides the terminal; None for nowhere.

    Attributes:
        page: with the pictures.
        numbers: JSON of one caption, lines of JSON of several.
        resume: go on with lines that were stopped.
    """

    page: Path | None = None
    numbers: Path | None = None
    resume: bool = False

    def check(self) -> None:
        """Refuse places that cannot be written, before anything is done.

        Raises:
            ValueError: one of them is a folder, or may not be written, or there are no lines that
                can be gone on with.
        """
        if self.resume and self.numbers is None:
            raise ValueError("--resume goes on with what --json has begun; name that file")
        for path in (self.page, self.numbers):
            if path is not None:
                check_file(path)


def explain_with(
    name: str, image: str, caption: str, source: Source | None, plan: ExplainPlan, out: Places
) -> Explanation:
    """Explain a caption of an image in the terminal and, if asked, on a page and as JSON.

    Args:
        name: of the model.
        image: the path of a picture; its id where data are given.
        caption: what is said of it.
        source: data that hold the image.
        plan: how to explain.
        out: where else.

    Raises:
        ValueError: as `counterfoil.recipes.explain.explain` does.
    """
    out.check()
    world.join()
    corpus = None if source is None else source.open()
    if corpus is not None:
        picture = _picture(corpus, image_row(corpus, image))
    elif is_picture_name(Path(image)) or Path(image).exists():
        picture = open_picture(Path(image))
    else:
        raise ValueError(
            f"{image!r} is no picture; give the path of one, or name with --data the data whose "
            "image it is"
        )
    model = open_model(name)
    seen = image if corpus is not None or picture is None else picture
    (found,) = explain(
        model, seen, [caption], corpus=corpus, threshold=plan.threshold,
        corrections=plan.corrections,
    )  # fmt: skip
    card = ExplainedCard(shown_image(image, picture), found, plan.threshold)
    if world.rank() == 0:
        _say_lacking(model)
        explain_shown.one(card, measure(found))
        if out.page is not None:
            page = made_page(model, "A caption explained", headline(found, plan), (card,), "")
            write_page(out.page, page)
        if out.numbers is not None:
            write_json(out.numbers, {"model": name, "image": image, **found.plain()})
            output(f"{out.numbers}")
    return found


def audit_with(
    name: str,
    source: Source,
    split: str,
    file: Path | None,
    plan: ExplainPlan,
    top: int,
    out: Places,
) -> list[Explanation]:
    """Explain all captions of a data set or a file; show the most suspicious.

    Args:
        name: of the model.
        source: the data; where a file is given, those that hold its images, if it is not "".
        split: of the data, where no file is given.
        file: lines of image and caption.
        plan: how to explain.
        top: how many captions to show.
        out: where else.

    Returns:
        The captions that are shown.

    Raises:
        ValueError: as `counterfoil.recipes.explain.explain` does, or a line of the file is no image
            and caption.
    """
    out.check()
    world.join()
    corpus = source.split(split) if file is None else file_corpus(file, source)
    model = open_model(name)
    rank = plan.ranked(model)
    parts = _parts(model, corpus, plan, out)
    counted = doubted = cut = 0
    best: list[tuple[float, int, Explanation]] = []
    with _lines(out.numbers) as keep:
        for row, found in explain_corpus(model, corpus, plan, parts):
            suspicion = _suspicion(found, rank)
            keep(suspicion, {**_named(corpus, row), "suspicion": suspicion, **found.plain()})
            counted, cut = counted + 1, cut + (found.unread is not None)
            doubted += (found.doubt or 0.0) >= plan.threshold
            (heapq.heappush if len(best) < top else heapq.heappushpop)(
                best, (suspicion, -row, found)
            )
    if parts is not None:
        parts.drop()
    best.sort(key=lambda one: (-one[0], -one[1]))
    if world.rank() == 0:
        by = "greatest doubt" if rank == "doubt" else "lowest score"
        told = f"{corpus.name}: {counted:,} captions; {by} first"
        told += f"; {cut:,} too long for the model, judged as far as it reads" if cut else ""
        line = summary(doubted, counted, plan) if best and best[0][2].doubts else ""
        _show_audit(model, corpus, best, (line, told), plan, out)
    return [found for _, _, found in best]


def _parts(model: Model, corpus: Corpus, plan: ExplainPlan, out: Places) -> ExplainedParts | None:
    """Where explanations are kept until all are there; None where lines of them go nowhere."""
    if out.numbers is None or world.rank():
        return None
    facts = {
        "model": model.identity(),
        "data": corpus.fingerprint,
        "threshold": plan.threshold,
        "corrections": plan.corrections,
    }
    return ExplainedParts(out.numbers, facts, resume=out.resume)


def file_corpus(file: Path, source: Source) -> Corpus:
    """The images and captions of a file of lines, with images of other data where these are named.

    Raises:
        ValueError: the file is missing, a line of it is no image and caption, or an image is not in
            the data.
    """
    if not file.is_file():
        raise ValueError(
            f"{file} does not exist; lines of image and caption are needed there, as in {LISTS[0]}"
        )
    if not source.data:
        return read_folder(file, images=source.images, features=source.features, name=file.name)
    told, whole = read_folder(file, name=file.name), source.open()
    known = {name: row for row, name in enumerate(whole.image_ids)}
    for name in told.image_ids:
        if name not in known:
            image_row(whole, name)  # says what is known
    rows = [known[name] for name in told.image_ids]
    owner = told.owner.clone()
    for place, row in enumerate(rows):
        owner[told.owner == place] = row
    return replace(
        whole, name=file.name, texts=told.texts, text_ids=told.text_ids, owner=owner,
        text_features=None,
    )  # fmt: skip


def _show_audit(
    model: Model,
    corpus: Corpus,
    best: list[tuple[float, int, Explanation]],
    told: tuple[str, str],
    plan: ExplainPlan,
    out: Places,
) -> None:
    """The terminal, the page, and where the lines went."""
    cards = []
    for place, (_, row, found) in enumerate(best, 1):
        image = int(corpus.owner[-row])
        picture = _picture(corpus, image) if out.page is not None else None
        shown = shown_image(corpus.image_ids[image], picture)
        cards.append(ExplainedCard(shown, found, plan.threshold, place))
    _say_lacking(model)
    explain_shown.ranked(cards, measure(best[0][2]) if best else "")
    for line in filter(None, told):
        output(line)
    if out.page is not None:
        title = told[0] or f"The {len(cards):,} captions that fit least."
        write_page(out.page, made_page(model, "Suspicious captions", title, tuple(cards), told[1]))
    if out.numbers is not None:
        output(f"{out.numbers}")


def _say_lacking(model: Model) -> None:
    if lacks := lacking(model):
        rest = (
            "nothing is corrected" if doubts_words(model.matcher) else "words are left out instead"
        )
        info(f"{lacks}; {rest}")


def _suspicion(found: Explanation, rank: Rank) -> float:
    return (found.doubt or 0.0) if rank == "doubt" else -found.score


def _named(corpus: Corpus, row: int) -> dict[str, Any]:
    return {"id": corpus.text_ids[row], "image": corpus.image_ids[int(corpus.owner[row])]}


def _picture(corpus: Corpus, row: int) -> Image.Image | None:
    return corpus.pictures.open(row) if corpus.pictures else None


@contextmanager
def _lines(path: Path | None) -> Iterator[Any]:
    """What keeps lines of JSON; at the end they are written, the most suspicious first."""
    if path is None or world.rank():
        yield lambda suspicion, plain: None
        return
    with tempfile.TemporaryFile() as spool:
        starts: list[tuple[float, int, int]] = []

        def keep(suspicion: float, plain: dict[str, Any]) -> None:
            line = json.dumps(plain, ensure_ascii=False).encode() + b"\n"
            starts.append((-suspicion, spool.tell(), len(line)))
            spool.write(line)

        yield keep
        with replacing(path) as temporary, temporary.open("wb") as file:
            _sorted(spool, starts, file)


def _sorted(spool: IO[bytes], starts: list[tuple[float, int, int]], file: IO[bytes]) -> None:
    for _, start, length in sorted(starts):
        spool.seek(start)
        file.write(spool.read(length))
