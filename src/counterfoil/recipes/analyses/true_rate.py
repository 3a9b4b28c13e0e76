"""How many written captions are true after all, and which filter finds out (TAGS, 2.1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.meanings import Meanings
from counterfoil.data.caption_edits import wordnet_synonyms
from counterfoil.evaluate.true_rate import lowest, sifted, told_apart
from counterfoil.negatives.word_rules import Rule, Told, left_out
from counterfoil.recipes.analyses import true_rate_page
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import Scorer, open_scorers
from counterfoil.recipes.analyses.stores import open_stores
from counterfoil.recipes.analyses.true_rate_page import Judged, Scored
from counterfoil.recipes.analyses.truths import Known, decided, judged
from counterfoil.recipes.run import Source

LEFT_OUT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # shares of the highest scores
NONE, PAPER, ALL = "none", "captions", "all of these"
MORE: tuple[Rule, ...] = ("lemmas", "wordnet", "inflection")


def true_rate(
    folders: Sequence[Path],
    source: Source,
    out: Path,
    *,
    crowd: Path | None = None,
    guide: str | None = None,
    encoder: str | None = None,
    slack: float = 0.0,
    examples: int = 6,
    seed: int = 0,
) -> tuple[Judged, ...]:
    """Measure how many captions are false before and after each filter.

    Args:
        folders: of captions written for scenes, of which it can be decided what is true.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        crowd: judgements of captions of other pictures, see `counterfoil.data.corrections`.
        guide: a model that is asked; joined by ``+``, an ensemble.
        encoder: a sentence encoder that is asked, see `counterfoil.negatives.paraphrase`.
        slack: of both, see `counterfoil.negatives.second_opinion.SecondOpinion`.
        examples: true captions that every filter keeps, to show.
        seed: of the intervals and examples.

    Raises:
        ValueError: the page exists, nothing is to be judged, or data, captions and guide do not
            fit.
    """
    check_out(out)
    if not folders and crowd is None:
        raise ValueError(
            "nothing is to be judged; name folders of captions written for scenes, or a file of "
            "judgements with --crowd"
        )
    world.join()
    asked = open_scorers([guide])[0] if guide else None
    meanings = Meanings(encoder, device=world.device()) if encoder else None
    known = [decided(stored) for stored in open_stores(folders, source)]
    known += [judged(crowd, source)] if crowd else []
    found = tuple(_judged(one, asked, meanings, slack, examples, seed) for one in known)
    page = true_rate_page.page(found, _protocol(found, asked, encoder, slack, seed), seed)
    sets = [one.plain() for one in found]
    numbers = {"seed": seed, "guide": guide, "encoder": encoder, "slack": slack, "sets": sets}
    publish(page, numbers, out)
    return found


def _judged(
    known: Known,
    guide: Scorer | None,
    meanings: Meanings | None,
    slack: float,
    examples: int,
    seed: int,
) -> Judged:
    scores, opinions = dict(known.scores), {}
    if guide:
        new, old = known.asked(guide)
        opinions["guide"] = new < old - slack
        scores |= {
            f"{guide.name}: score": new,
            f"{guide.name}: score less that of its own": new - old,
        }
    if meanings:
        new, old = known.meant(meanings)
        opinions["encoder"] = ~(old.isfinite() & (new >= old - slack))
        gap = torch.where(old.isfinite(), new - old, -torch.inf)
        scores |= {"encoder: cosine": new, "encoder: cosine less that of its own": gap}
    kept = filters(known, opinions)
    where = known.true, known.images
    return Judged(
        known,
        sifted(*where, kept, seed=seed),
        tuple(
            Scored(
                name,
                told_apart(values, *where, seed=seed),
                sifted(*where, {f"{100 * s:g}": lowest(values, s) for s in LEFT_OUT}, seed=seed),
            )
            for name, values in scores.items()
        ),
        _some(known.true & list(kept.values())[-1], examples, seed),
    )


def filters(known: Known, opinions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(N,) bool, what each filter that can be asked keeps, by its name.

    Args:
        known: the captions.
        opinions: (N,) bool, what models take for false, by name.
    """
    told = {row: Told(_own(known, row)) for row in known.images.unique().tolist()}  # type: ignore[no-untyped-call]
    pairs = list(zip(known.images.tolist(), known.words, strict=True))

    def keeps(rule: Rule) -> Tensor:
        return torch.tensor([not left_out(rule, told[row], words) for row, words in pairs])

    more: dict[str, Tensor] = {rule: keeps(rule) for rule in MORE if _possible(rule, known)}
    more |= opinions
    paper = keeps("captions")
    every = paper.clone()
    for mask in more.values():
        every &= mask
    found = {NONE: torch.ones_like(paper), PAPER: paper}
    found |= {f"{PAPER} + {name}": paper & mask for name, mask in more.items()}
    return found | ({ALL: every} if len(more) > 1 else {})


def _own(known: Known, image: int) -> list[str]:
    rows = known.corpus.relation.captions(torch.tensor([image]))[0].tolist()
    return [known.corpus.texts[row] for row in rows]


def _possible(rule: Rule, known: Known) -> bool:
    """Whether a rule can be asked: WordNet may not be there, nor a caption that was changed."""
    if rule == "inflection":
        return any(old for words in known.words for old, _ in words)
    if rule == "wordnet":
        try:
            wordnet_synonyms("dog")
        except ValueError:
            return False
    return True


def _some(wanted: Tensor, count: int, seed: int) -> tuple[int, ...]:
    rows = wanted.nonzero().flatten()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]
    return tuple(rows[order].tolist())


def _protocol(
    found: Sequence[Judged], guide: Scorer | None, encoder: str | None, slack: float, seed: int
) -> str:
    parts = [one.known.said for one in found]
    parts += [f"guide {guide.name}: {guide.said()}, slack {slack:g}"] if guide else []
    parts += [f"sentence encoder {encoder}, slack {slack:g}"] if encoder else []
    if not any("wordnet" in sieve.name for one in found for sieve in one.filters):
        parts.append("wordnet is not asked, as nltk or its WordNet is not installed")
    return "; ".join([*parts, f"seed {seed}"])
