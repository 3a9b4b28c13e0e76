"""Generated captions that are true after all: rates before and after filters, and judgements.

TAGS (https://arxiv.org/abs/2111.03349), sections 2.1.2 and 4.2.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, final

import torch
import typer
from torch import Tensor

from counterfoil.cli.options import Seed, refuse_without
from counterfoil.core import distributed
from counterfoil.core.console import output, progress
from counterfoil.core.io import ensure_absent, ensure_writable_file, read_text, write_text
from counterfoil.data.caption_edits import wordnet_synonyms
from counterfoil.data.corrections import read_crowd_votes
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import is_true
from counterfoil.evaluation.bootstrap import (
    RESAMPLES,
    Counted,
    Share,
    image_draws,
    percentile_interval,
    shares,
)
from counterfoil.evaluation.foils.measures import roc_area
from counterfoil.evaluation.galleries import shown_image
from counterfoil.negatives.generated import GeneratedCaption
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.papers.analyses import Examples, analysis
from counterfoil.papers.compared.rules import (
    Exchanged,
    ImageWords,
    all_words,
    exchanged_words,
    left_out_by_rule,
)
from counterfoil.papers.tags.captions import (
    StoredCaptions,
    first_of_images,
    open_stores,
    score_captions,
)
from counterfoil.papers.tags.inputs import Rule
from counterfoil.papers.tags.judges import CaptionNearness
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.scorers import Scorer, open_scorers
from counterfoil.report.analysis import Analysis, Column, table
from counterfoil.report.figures import grouped_bars, result_curves
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Figure,
    PageItem,
    TableBlock,
)

# -- Section 2.1.2: generated captions that are true, before and after filters --------------------
# Generated negatives ought to be false. A filter leaves some out: more of what it keeps should be
# false, and few false ones should be lost. Intervals resample images with all their captions; all
# filters see the same draws.

LEFT_OUT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # shares of the highest scores
_PAPER_RULE = "captions"
_MORE_RULES: tuple[Rule, ...] = ("lemmas", "wordnet", "inflection")


class FilterResult(NamedTuple):
    """Rates of a filter of captions, in percent."""

    name: str
    kept: int
    true: int  # of the kept ones
    share: Share  # of all captions, kept
    false_rate: Share  # of the kept captions, false: the true-negative rate
    caught: Share  # of the true captions, left out
    lost: Share  # of the false captions, left out

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return self._asdict()


_RATES: dict[str, Column] = {
    "kept": "kept",
    "kept, %": "share",
    "false of the kept, %": "false_rate",
    "true ones left out, %": "caught",
    "false ones lost, %": "lost",
}


def filter_results(
    true: Tensor, image: Tensor, filters: Mapping[str, Tensor], *, seed: int = 0
) -> tuple[FilterResult, ...]:
    """Measure the captions that filters keep.

    All (N,): whether each caption is true, its image, and, by the name of each filter, whether it
    is kept. Images are resampled.

    Raises:
        ValueError: there is no caption.
    """
    if not len(true):
        raise ValueError("no caption is known to be true or false, so no filter can be judged")
    wanted = [
        counted
        for keeps in filters.values()
        for counted in (
            Counted.where(keeps),
            Counted.where(~true, keeps),
            Counted.where(~keeps, true),
            Counted.where(~keeps, ~true),
        )
    ]
    rates = iter(shares(wanted, image, scale=100, seed=seed))
    return tuple(
        FilterResult(name, int(keeps.sum()), int((keeps & true).sum()), *islice(rates, 4))
        for name, keeps in filters.items()
    )


def lowest(scores: Tensor, share: float) -> Tensor:
    """(N,) bool, all but this share of the highest scores; of equal ones the later goes first."""
    out = torch.ones(len(scores), dtype=torch.bool)
    out[scores.argsort(stable=True)[len(scores) - round(share * len(scores)) :]] = False
    return out


def roc_auc(scores: Tensor, true: Tensor, image: Tensor, *, seed: int = 0) -> Share:
    """Percent of the pairs of a true and a false caption in which the true one scores higher.

    All (N,): scores, whether each caption is true, and its image; images are resampled.
    """
    scores, pairs = scores.double(), int(true.sum()) * int((~true).sum())
    images, place = torch.unique(image, return_inverse=True)
    draws = image_draws(
        [torch.arange(len(images))],
        len(images),
        resamples=RESAMPLES,
        seed=seed,
        width=len(true),
    )
    spread = [roc_area(scores, true, counts[:, place]) for counts in draws]
    value = roc_area(scores, true, torch.ones(1, len(true), dtype=torch.double)).item()
    resampled = torch.cat(spread)
    resampled += value - resampled.nanmean()  # copies of a picture in a draw tie with each other
    return Share(100 * value, percentile_interval(100 * resampled.clamp(0, 1)), pairs)


@final
@dataclass(frozen=True, slots=True, eq=False)
class JudgedCaptions:
    """N captions and whether they are true."""

    name: str
    description: str  # their origin and who decided
    dataset: ImageTextDataset  # has the images and their own captions
    captions: tuple[str, ...]
    true: Tensor  # (N,) bool
    images: Tensor  # (N,) long, rows
    words: tuple[Exchanged, ...]  # exchanged ones; all words if it was made of no other caption
    made_of: Tensor  # (N,) long, row of the caption that it was made of; -1 for none
    scores: Mapping[str, Tensor]  # (N,) stored scores, by name
    agreement: tuple[Mapping[str, Any], ...] = ()  # of human judges, JSON-ready

    def scored(self, guide: Scorer) -> tuple[Tensor, Tensor]:
        """(N,) a model's scores, and those of the captions they are compared with.

        That is the caption that each was made of, or the mean of the image's own captions if it was
        made of none.

        Raises:
            ValueError: the model cannot see the images or read the captions.
        """
        guide.check_reads()
        own, caption = self._references()
        images = torch.cat([self.images, self.images[caption]])
        texts = [*self.captions, *(self.dataset.texts[row] for row in own.tolist())]
        scores = score_captions(guide, self.dataset, images, texts, scaled=False)
        new, old = scores.split([len(self.captions), len(own)])  # type: ignore[no-untyped-call]
        return new, self._means(old, caption)

    def nearness(self, meanings: SentenceEncoder) -> tuple[Tensor, Tensor]:
        """(N,) cosine to the image's nearest caption, and that of the captions compared with.

        The caption that each was made of does not count. -inf for an image without another caption.
        """
        relation = self.dataset.relation
        described = relation.captions(torch.unique(self.images))[0].sort().values
        texts = meanings.vectors([self.dataset.texts[row] for row in described.tolist()])
        near = CaptionNearness(relation, described, texts)
        new = near.nearest(meanings.vectors(self.captions), self.images, self.made_of)
        nearest = near.nearest(texts, relation.text_to_image[described], described)
        own, caption = self._references()
        return new, self._means(nearest[torch.searchsorted(described, own)], caption)

    def _references(self) -> tuple[Tensor, Tensor]:
        """Rows of the captions compared with, and the row of the caption each belongs to."""
        own, counts = self.dataset.relation.captions(self.images)
        caption = torch.arange(len(self.captions)).repeat_interleave(counts)
        compared = (self.made_of[caption] < 0) | (self.made_of[caption] == own)
        return own[compared], caption[compared]

    def _means(self, values: Tensor, caption: Tensor) -> Tensor:
        """(N,) mean value of the references of each caption."""
        count = len(self.captions)
        sums = torch.zeros(count).index_add_(0, caption, values)
        return sums / caption.bincount(minlength=count)


class _TrueRate(NamedTuple):
    """Filters measured on judged captions."""

    judged: JudgedCaptions
    filters: Sequence[FilterResult]  # by rules and models, without a filter first
    scores: Mapping[str, tuple[Share, Sequence[FilterResult]]]  # area, and without the highest
    survivors: Sequence[int]  # rows of some true captions that the last filter keeps

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        agreement = self.judged.agreement
        return {
            "set": self.judged.name,
            "captions": len(self.judged.captions),
            "true": int(self.judged.true.sum()),
            **({"agreement": list(agreement)} if agreement else {}),
            "filters": self.filters,
            "scores": [
                {"name": name, "roc_auc": auc, "below": below}
                for name, (auc, below) in self.scores.items()
            ],
        }


def _check_slack(context: typer.Context) -> None:
    if context.params["encoder"] is None:
        refuse_without(context, "guide", ("slack",))


@analysis(
    "true-rate",
    "counterfoil papers analyse true-rate written/ --data scenes --output true.html",
    "counterfoil papers analyse true-rate --crowd annotations/CrowdFlowerAnnotations.txt "
    "--data flickr8k/ --guide runs/mine/online --output crowd.html",
    "counterfoil papers analyse true-rate written/ --answers anna.csv --answers ben.csv "
    "--data flickr8k/ --output people.html",
    check=_check_slack,
)
def true_rate(
    source: DataSource,
    stores: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[STORE]...", help="Folders of generated captions."),
    ] = None,
    crowd: Annotated[
        Path | None, typer.Option(help="Crowd judgements of captions of other images.")
    ] = None,
    answers: Annotated[
        list[Path] | None,
        typer.Option(help="Sheet of `papers analyse sheet`, filled in by one person; repeatable."),
    ] = None,
    guide: Annotated[
        str | None, typer.Option(help="Guide model of the filter; join with `+` for an ensemble.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Sentence encoder of the filter.")] = None,
    slack: Annotated[
        float, typer.Option(help="Score below the original's from which a caption counts as true.")
    ] = 0.0,
    examples: Examples = 6,
    seed: Seed = 0,
) -> Analysis:
    """Count true captions among generated ones, before and after each filter.

    The truth of captions of rendered scenes is computed; others are judged by people.
    """
    if not stores and crowd is None:
        raise ValueError(
            "nothing is to be judged; name folders of captions written for scenes, or a file of "
            "judgements with --crowd"
        )
    scorer = open_scorers([guide])[0] if guide else None
    meanings = SentenceEncoder(encoder, device=distributed.device()) if encoder else None
    sheets = [_read_sheet(path) for path in answers or ()]
    judged = [
        _by_people(stored, sheets) if sheets else _by_scene(stored)
        for stored in open_stores(stores or (), source)
    ]
    judged += [_by_crowd(crowd, source)] if crowd else []
    rates = [_true_rate(captions, scorer, meanings, slack, examples, seed) for captions in judged]
    parts = [rate.judged.description for rate in rates]
    parts += [f"guide {scorer.name}: {scorer.describe()}, slack {slack:g}"] if scorer else []
    parts += [f"sentence encoder {encoder}, slack {slack:g}"] if encoder else []
    if not any("wordnet" in result.name for rate in rates for result in rate.filters):
        parts.append("wordnet is not asked, as nltk or its WordNet is not installed")
    return Analysis(
        title="True captions among written ones",
        headline=" ".join(map(_true_rate_headline, rates)),
        protocol="; ".join([*parts, f"seed {seed}"]),
        seed=seed,
        figures=tuple(_true_rate_figures(rates)),
        tables=tuple(table for rate in rates for table in _true_rate_tables(rate)),
        sections=tuple(section for rate in rates for section in _survivors(rate)),
        numbers={
            "seed": seed,
            "guide": guide,
            "encoder": encoder,
            "slack": slack,
            "sets": rates,
        },
    )


def _true_rate(
    judged: JudgedCaptions,
    guide: Scorer | None,
    meanings: SentenceEncoder | None,
    slack: float,
    examples: int,
    seed: int,
) -> _TrueRate:
    scores: dict[str, Tensor] = dict(judged.scores)
    opinions: dict[str, Tensor] = {}
    if guide:
        new, old = judged.scored(guide)
        opinions["guide"] = new < old - slack
        scores |= {
            f"{guide.name}: score": new,
            f"{guide.name}: score less that of its own": new - old,
        }
    if meanings:
        new, old = judged.nearness(meanings)
        opinions["encoder"] = ~(old.isfinite() & (new >= old - slack))
        gap = torch.where(old.isfinite(), new - old, -torch.inf)
        scores |= {"encoder: cosine": new, "encoder: cosine less that of its own": gap}
    masks_by_filter, known = _filters(judged, opinions), (judged.true, judged.images)
    filtered = {}
    for name, values in scores.items():
        masks = {f"{100 * share:g}": lowest(values, share) for share in LEFT_OUT}
        below = filter_results(*known, masks, seed=seed)
        filtered[name] = roc_auc(values, *known, seed=seed), below
    rows = (judged.true & list(masks_by_filter.values())[-1]).nonzero().flatten()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:examples]
    results = filter_results(*known, masks_by_filter, seed=seed)
    return _TrueRate(judged, results, filtered, rows[order].tolist())


def _filters(judged: JudgedCaptions, opinions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(N,) bool, captions that each filter keeps, by its name."""
    dataset, own = judged.dataset, {}
    for image in judged.images.unique().tolist():  # type: ignore[no-untyped-call]
        rows = dataset.relation.captions(torch.tensor([image]))[0].tolist()
        own[image] = ImageWords([dataset.texts[row] for row in rows])
    pairs = list(zip(judged.images.tolist(), judged.words, strict=True))

    def keeps(rule: Rule) -> Tensor:
        return torch.tensor([not left_out_by_rule(rule, own[row], words) for row, words in pairs])

    more: dict[str, Tensor] = {rule: keeps(rule) for rule in _MORE_RULES if _possible(rule, judged)}
    more |= opinions
    paper = keeps("captions")
    every = paper.clone()
    for mask in more.values():
        every &= mask
    masks = {"none": torch.ones_like(paper), _PAPER_RULE: paper}
    masks |= {f"{_PAPER_RULE} + {name}": paper & mask for name, mask in more.items()}
    return masks | ({"all of these": every} if len(more) > 1 else {})


def _possible(rule: Rule, judged: JudgedCaptions) -> bool:
    """Return True if a rule applies: WordNet may be missing, or no caption was made of another."""
    if rule == "inflection":
        return any(old for words in judged.words for old, _ in words)
    if rule == "wordnet":
        try:
            wordnet_synonyms("dog")
        except ValueError:
            return False
    return True


def _judged(
    stored: StoredCaptions,
    truth: Sequence[bool | None],
    description: str,
    agreement: tuple[Mapping[str, Any], ...] = (),
) -> JudgedCaptions:
    """Stored captions of which it is known whether they are true."""
    rows = [row for row, true in enumerate(truth) if true is not None]
    foils = [stored.foils[row] for row in rows]
    scores = {}
    if foils and all({"caption", "foil"} <= set(foil.scores) for foil in foils):
        new, old = (torch.tensor([f.scores[name] for f in foils]) for name in ("foil", "caption"))
        scores = {"stored score": new, "stored score less the caption's": new - old}
    return JudgedCaptions(
        name=stored.name,
        description=f"{stored.describe()}; {description}",
        dataset=stored.dataset,
        captions=tuple(foil.foil for foil in foils),
        true=torch.tensor([bool(truth[row]) for row in rows], dtype=torch.bool),
        images=torch.tensor(stored.images)[rows],
        words=tuple(map(exchanged_words, foils)),
        made_of=torch.tensor(stored.texts)[rows],
        scores=scores,
        agreement=agreement,
    )


def _by_scene(stored: StoredCaptions) -> JudgedCaptions:
    """Decide captions of rendered scenes by their scene graphs."""
    try:
        scenes = graphs(stored.dataset)
    except ValueError:
        raise ValueError(
            f"{stored.name} was written for {stored.dataset.name}, and only of scenes can it be "
            "decided what is true; name judgements with --crowd, or have people fill in a sheet of "
            "`counterfoil papers analyse sheet` and name it with --answers"
        ) from None
    truth = []
    with progress("captions decided", len(stored.foils)) as advance:
        for foil, image in zip(stored.foils, stored.images, strict=True):
            truth.append(is_true(foil.foil, scenes[image]))
            advance(1)
    outside = f"{truth.count(None):,} outside the grammar of scenes left out"
    return _judged(stored, truth, outside)


def _by_crowd(path: Path, source: DataSource) -> JudgedCaptions:
    """Captions of other images that a crowd judged; true if half or more said so."""
    whole = source.open()
    crowd = read_crowd_votes(path, whole)
    rows = torch.cat([crowd.images, whole.text_to_image[crowd.texts]]).unique()  # type: ignore[no-untyped-call]
    dataset = whole.subset(rows[rows >= 0])
    others = read_crowd_votes(path, dataset)
    every = len(others)
    others = others.rows(dataset.text_to_image[others.texts] != others.images)
    captions = tuple(dataset.texts[row] for row in others.texts.tolist())
    return JudgedCaptions(
        name=path.stem,
        description=(
            f"{path.name}: {len(others):,} captions shown with other pictures of {whole.name}, "
            f"true where half of the crowd or more says so; {every - len(others):,} shown with "
            "their own left out"
        ),
        dataset=dataset,
        captions=captions,
        true=others.true,
        images=others.images,
        words=tuple(map(all_words, captions)),
        made_of=torch.full((len(others),), -1),
        scores={},
    )


def _true_rate_headline(rate: _TrueRate) -> str:
    first, paper, *_ = rate.filters
    false = {result.name: result.false_rate.value for result in rate.filters}
    words = f"{rate.judged.name}: of {first.kept:,} captions {false[first.name]:.1f} % are false"
    left = [result for result in rate.filters[1:] if result.kept]
    if not left:
        return f"{words}; no filter keeps any."
    best = max(left, key=lambda result: false[result.name])
    at_best = f"{false[best.name]:.1f} % of those of {best.name}"
    if paper.kept:
        at_paper = f"{false[paper.name]:.1f} % of those that the paper's rule keeps"
        at_best = at_paper if best is paper else f"{at_paper}, {at_best}"
    if not best.lost.count:
        return f"{words}; {at_best}."
    return f"{words}; {at_best}, which loses {best.lost.value:.1f} % of the false ones."


def _true_rate_tables(rate: _TrueRate) -> Iterator[TableBlock]:
    note = (
        "False of the kept: the true-negative rate. captions: left out when all new words occur in "
        "the picture's captions, the paper's rule; lemmas, wordnet: when some form, synonym or "
        "wider term of each does; inflection: when a new word has another ending; guide: when the "
        "guide model scores it at least as high as what it was made of, or as the picture's own "
        "captions do on average; encoder: when a sentence encoder finds it as near in meaning to "
        "the picture's other captions as what it was made of, or as its own captions are to each "
        "other on average. Behind each rate its 95 % interval: pictures drawn anew with all their "
        "captions, 1,000 times."
    )
    yield table(f"{rate.judged.name}: filters", rate.filters, {"": "name", **_RATES}, note)
    for name, (auc, below) in rate.scores.items():
        pairs = (
            f"Of a true and a false caption the true one scores higher in {auc.text()} % of all "
            "pairs."
        )
        columns = {"highest left out, %": "name", **_RATES}
        yield table(f"{rate.judged.name}: by {name}", below, columns, pairs)


def _true_rate_figures(rates: Sequence[_TrueRate]) -> Iterator[Figure]:
    label = "false of the kept, %"
    points = [
        result.false_rate.point(result.name, group=rate.judged.name)
        for rate in rates
        for result in rate.filters
        if result.kept
    ]
    yield grouped_bars(points, label, "filters", "What filters keep.")
    for number, rate in enumerate(rates):
        lines = [
            below.false_rate.point(name, at=float(below.name))
            for name, (_, each) in rate.scores.items()
            for below in each
        ]
        if lines:
            caption = f"{rate.judged.name}: what is kept without the highest scores."
            against, key = "highest scores left out, %", f"scores-{number}"
            yield result_curves(lines, label, against, key, caption, log=False, columns=1)


def _survivors(rate: _TrueRate) -> Iterator[CardSection]:
    judged, shown, cards = rate.judged, rate.judged.dataset, []
    for row in rate.survivors:
        old = int(judged.made_of[row])
        title = f"made of: {judged.dataset.texts[old]}" if old >= 0 else "true"
        column = CardColumn(title, "", (PageItem(judged.captions[row]),))
        cards.append(ExampleCard(shown_image(shown, int(judged.images[row])), "", (column,)))
    if cards:
        note = f"Some of the true captions that the last filter keeps: {rate.filters[-1].name}."
        yield CardSection(f"{judged.name}: true, and not found", note, tuple(cards))


# -- Judgements by people (TAGS, section 4.2) ------------------------------------------------------

SHEET_COLUMNS = "item", "picture", "sentence", "answer"
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # what spreadsheets compute begins with one of these
ANSWERS = {"true": True, "false": False, "unsure": None, "": None}


def export_sheet(
    folders: Sequence[Path], source: DataSource, out: Path, *, count: int = 200, seed: int = 0
) -> int:
    """Write a CSV sheet on which people judge whether generated captions are true.

    It has `count` sentences of each store. Rows of all stores are mixed, at most one about an
    image, and do not say where a sentence is from. Each person fills the column "answer" of a copy
    with true, false or unsure; `true_rate` reads the copies.

    Returns:
        The number of sentences.

    Raises:
        ValueError: the file exists, there are too few images or no pictures, or data and captions
            do not fit.
    """
    ensure_absent(out, "a new file with --output")
    ensure_writable_file(out)
    stores = open_stores(folders, source)
    pictures = stores[0].dataset.pictures
    if pictures is None:
        raise ValueError(
            f"{stores[0].dataset.name} comes without pictures, which judges have to see; name "
            "their folder, as in --data photos.csv:images=pictures/"
        )
    rng = torch.Generator().manual_seed(seed)
    used: set[int] = set()
    rows: list[tuple[str, ...]] = []
    for store in stores:
        order = torch.randperm(len(store.foils), generator=rng).tolist()
        chosen = first_of_images(order, store.images, count, used)
        for place in chosen:
            foil, image = store.foils[place], store.images[place]
            shown = map(sheet_cell, (pictures.place(image), foil.foil))
            rows.append((_sheet_item(foil), *shown, ""))
        if len(chosen) < count:
            raise ValueError(
                f"{store.name} has only {len(chosen):,} pictures left for {count:,} sentences, of "
                "which each has a picture of its own; lower --count"
            )
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(SHEET_COLUMNS)
    writer.writerows(rows[row] for row in torch.randperm(len(rows), generator=rng).tolist())
    write_text(out, "\ufeff" + table.getvalue())  # the mark by which spreadsheets know UTF-8
    output(f"{len(rows):,} sentences: {out}; give each person a copy")
    return len(rows)


def sheet_cell(text: str) -> str:
    """Text that a spreadsheet shows and does not compute, by a leading apostrophe.

    >>> sheet_cell("=1+1"), sheet_cell("a dog = a cat")
    ("'=1+1", 'a dog = a cat')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def _sheet_item(foil: GeneratedCaption) -> str:
    """Identify a sentence about an image; the prefix keeps spreadsheets from reading a number."""
    content = f"{foil.image}\n{foil.foil}".encode()
    return f"s{hashlib.sha256(content).hexdigest()[:16]}"


def _read_sheet(path: Path) -> tuple[str, dict[str, bool | None]]:
    """Name and answers of a filled sheet."""
    reader = csv.DictReader(io.StringIO(read_text(path, "judgements")))
    if not {"item", "answer"} <= set(reader.fieldnames or ()):
        raise ValueError(
            f"{path} has no columns item and answer; name a sheet of "
            "`counterfoil papers analyse sheet`"
        )
    answers: dict[str, bool | None] = {}
    for line in reader:
        answer = (line["answer"] or "").strip().lower()
        if answer not in ANSWERS:
            raise ValueError(
                f"{path} answers {answer!r} to {line['item']}; write true, false, unsure or nothing"
            )
        answers[line["item"]] = ANSWERS[answer]
    return path.stem, answers


def _by_people(
    stored: StoredCaptions, sheets: Sequence[tuple[str, Mapping[str, bool | None]]]
) -> JudgedCaptions:
    """Captions that people judged; true if at least as many said true as false."""
    items = [_sheet_item(foil) for foil in stored.foils]
    truth: list[bool | None] = []
    for item in items:
        votes = Counter(vote for _, sheet in sheets if (vote := sheet.get(item)) is not None)
        truth.append(votes[True] >= votes[False] if votes else None)
    if truth.count(None) == len(truth):
        raise ValueError(
            f"no answer is about {stored.name}; name a filled sheet that was written for it"
        )
    agreement = tuple(_agreement(one, other, set(items)) for one, other in combinations(sheets, 2))
    kappas = "".join(
        f"; {' and '.join(pair['judges'])} on {pair['items']:,}: Cohen's kappa {pair['kappa']:.2f}"
        for pair in agreement
        if pair["kappa"] is not None
    )
    judges = ", ".join(name for name, _ in sheets)
    count = len(truth) - truth.count(None)
    description = f"{count:,} judged by {judges}, true if as many say true as false{kappas}"
    return _judged(stored, truth, description, agreement)


def _agreement(
    one: tuple[str, Mapping[str, bool | None]],
    other: tuple[str, Mapping[str, bool | None]],
    items: set[str],
) -> dict[str, Any]:
    """Percent of equal answers and Cohen's kappa of two people, on what both decided."""
    from sklearn.metrics import cohen_kappa_score

    (first, a), (second, b) = one, other
    common = [i for i in sorted(items) if a.get(i) is not None and b.get(i) is not None]
    pairs = [(bool(a[i]), bool(b[i])) for i in common]
    kappa = None
    if len({answer for pair in pairs for answer in pair}) > 1:  # else undefined
        kappa = float(cohen_kappa_score([x for x, _ in pairs], [y for _, y in pairs]))
    raw = 100 * sum(x == y for x, y in pairs) / len(pairs) if pairs else None
    return {"judges": [first, second], "items": len(common), "raw": raw, "kappa": kappa}
