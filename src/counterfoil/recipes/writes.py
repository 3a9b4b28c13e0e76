"""Captions that rules or a trained model write and store, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from counterfoil.data.phrases import PhraseParser, RulePhraseParser
from counterfoil.negatives.candidates import RULES, Rule
from counterfoil.negatives.hand import Hand, at_least_one
from counterfoil.negatives.masks import SHARE, Singles
from counterfoil.recipes.guides import LATER
from counterfoil.spec import Spec, of, unknown

BY_RULE: Spec[PhraseParser] = of(RulePhraseParser)
WRITERS = ("write", "rewrite")  # kinds of stages that write a folder of foils


@final
@dataclass(frozen=True, slots=True)
class RulePlan:
    """What rules are to write.

    Attributes:
        split: whose captions are changed.
        kinds: see `counterfoil.negatives.rule_writer.RuleWriter`; () for all.
        most: foils of a kind that are kept of each caption.
        frequency: how often a noun stands in the training captions; see
            `counterfoil.negatives.rule_writer.frequent_nouns`.
        synonyms: which nouns may name the same.
        seed: of the choice among all foils.
    """

    split: str = "train"
    kinds: tuple[str, ...] = ()
    most: int = 5
    frequency: int | None = None
    synonyms: str = "list"
    seed: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """Change captions of a split by rule (VSE-C). Writes a folder of foils.

    Attributes:
        name: of the stage and of its folder.
        plan: what the rules are to write.
    """

    kind: ClassVar[str] = "rewrite"
    name: str
    plan: RulePlan = RulePlan()

    @property
    def split(self) -> str:
        """Whose captions are changed."""
        return self.plan.split

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs: none."""
        return ()

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be: none."""
        return ()


@final
@dataclass(frozen=True, kw_only=True)
class Write:
    """Let a trained model write false captions of a split (TAGS). Writes a folder of foils.

    Attributes:
        name: of the stage and of its folder.
        using: stage whose model writes; it needs heads for a score and for hidden words.
        split: whose captions are changed; a training draws from those of "train".
        parser: finds the phrases that are hidden.
        masks: K, maskings of each caption.
        refills: L, refills of each masking.
        keep: m, hardest foils that are kept of each caption.
        temperature: of the draw of words.
        share: of the tokens that are hidden, roughly.
        singles: whether single words are hidden, see `counterfoil.negatives.hand.Hand`.
        rules: what may be true, see `counterfoil.negatives.candidates.Sieve`.
        guide: stage whose model judges the hardest too: what it scores about as high as the
            original is left out.
        slack: how far below the original's score that is, or its cosine.
        seed: of what is hidden and drawn.
        encoder: a sentence encoder that judges them too: what is about as near in meaning to the
            image's other captions as the original is left out, see
            `counterfoil.negatives.paraphrase.Paraphrase`.

    Raises:
        ValueError: a number or a rule that is not possible.
    """

    kind: ClassVar[str] = "write"
    name: str
    using: str
    split: str = "train"
    parser: Spec[PhraseParser] = BY_RULE
    masks: int = 20
    refills: int = 20
    keep: int = 10
    temperature: float = 1.5
    share: float = SHARE
    singles: Singles = "without phrases"
    rules: tuple[Rule, ...] = ("captions",)
    guide: str | None = None
    slack: float = 0.0
    seed: int = 0
    encoder: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        at_least_one({"keep": self.keep})
        if strange := [rule for rule in self.rules if rule not in RULES]:
            raise ValueError(unknown(strange[0], list(RULES), "a rule for written captions"))
        _ = self.hand  # which refuses the rest

    @property
    def hand(self) -> Hand:
        """How it writes."""
        return Hand(
            masks=self.masks,
            refills=self.refills,
            temperature=self.temperature,
            share=self.share,
            singles=self.singles,
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (self.using, self.guide) if self.guide else (self.using,)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)
