"""Forms of English words, by rule: what is left when endings are taken off.

>>> [lemma(word) for word in "dogs boxes babies men running stopped rides dress red".split()]
['dog', 'box', 'baby', 'man', 'run', 'stop', 'ride', 'dress', 'red']
>>> inflection("dogs"), inflection("running"), inflection("ran"), inflection("dress")
('s', 'ing', 'ed', '')
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

Ending = Literal["", "s", "ing", "ed", "er", "est"]


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ENDED: tuple[tuple[Ending, str], ...] = (
    (
        "s",
        "men man women woman people person children child feet foot teeth tooth mice mouse "
        "geese goose knives knife wives wife lives life leaves leaf shelves shelf loaves loaf "
        "wolves wolf halves half scarves scarf calves calf has have does do goes go",
    ),
    (
        "ed",
        "ran run sat sit stood stand held hold rode ride ridden ride threw throw "
        "thrown throw caught catch drove drive driven drive ate eat eaten eat drank drink "
        "swam swim flew fly flown fly wore wear worn wear took take taken take gave give "
        "given give made make built build sold sell bought buy broke break broken break "
        "grew grow grown grow laid lay lay lie left leave led lead lit light shone shine "
        "slept sleep spoke speak spread spread swung swing told tell hung hang drew draw "
        "drawn draw blew blow blown blow fell fall fallen fall hid hide hidden hide was be "
        "were be been be had have did do done do went go gone go saw see seen see shot shoot "
        "bent bend bound bind kept keep met meet paid pay rose rise sang sing sprang spring "
        "wrote write written write froze freeze frozen freeze torn tear woven weave dug dig "
        "fed feed fought fight found find felt feel knelt kneel leapt leap slid slide",
    ),
    ("ing", "lying lie dying die tying tie being be skiing ski"),
    ("er", "better good"),
    ("est", "best good"),
)
IRREGULAR: dict[str, tuple[str, Ending]] = {
    inflected: (word, ending)
    for ending, pairs in _ENDED
    for inflected, word in zip(pairs.split()[::2], pairs.split()[1::2], strict=True)
}
UNENDED = _listed(
    "this his its is us was as has yes plus bus gas grass glass dress class cross across moss boss "
    "press less lens pass mass chess princess mattress business always perhaps tennis canvas "
    "christmas headphones during ring king thing string spring wing bring sing swing sling nothing "
    "something anything everything morning evening ceiling building wedding red bed shed sled weed "
    "seed bleed need speed feed hundred sacred kindred over under other another water after river "
    "tiger paper flower tower summer winter corner center counter number dinner letter shoulder "
    "finger computer father mother brother sister daughter never ever together leather weather "
    "forest chest vest nest rest west guest test interest harvest"
)
_KEPT_DOUBLE = "lsz"
_SILENT = _listed(
    "rid driv tak mak giv skat danc smil wav rac fac plac chas com hav us clos ros bak bik "
    "hik writ shin slid rais dribbl juggl wrestl paddl pil shap stag tabl explor "
    "pos wip wad decorat surround prepar practic challeng exercis chang lung leav serv "
    "observ receiv curv carv sav liv lov mov remov shov dov tun lin din shar star scor stor fir "
    "wir bor pok jok strok smok brok mak bal giggl sampl handl saddl cradl cuddl gathe imagin "
    "balanc celebrat concentrat operat demonstrat navigat illustrat graz gaz siz blaz doz freez "
    "squeez breath bath examin manoeuvr argu continu rescu glu cycl bicycl "
    "motorcycl snowmobil typ wip escap scrap grap ag cag stag engag massag manag judg "
    "dodg wedg nudg plung loung emerg charg larg forg purchas releas tas pleas ceas increas "
    "clas hous arous brows dispos compos expos oppos propos suppos cradl tackl sparkl "
    "tickl twinkl sprinkl tumbl stumbl gambl assembl resembl rumbl rumpl"
)


@lru_cache(maxsize=65_536)
def lemma(word: str) -> str:
    """The dictionary form of a lower-cased word, as far as rules tell; of others, the word."""
    if word in IRREGULAR:
        return IRREGULAR[word][0]
    ending = inflection(word)
    if ending == "s":
        return _singular(word)
    if ending in ("ing", "ed", "er", "est"):
        return _stem(word.removesuffix(ending))
    return word


@lru_cache(maxsize=65_536)
def inflection(word: str) -> Ending:
    """The ending of a lower-cased word that changes its form, not its meaning; "" for none."""
    if word in IRREGULAR:
        return IRREGULAR[word][1]
    if word in UNENDED or not word.isalpha():
        return ""
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return "s"
    if word.endswith("ing") and len(word) > 4 and _vowel(word[:-3]):
        return "ing"
    if word.endswith("ed") and not word.endswith("eed") and len(word) > 4 and _vowel(word[:-2]):
        return "ed"
    return ""


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses", "zzes", "oes")):
        return word[:-2]
    return word[:-1]


def _stem(stem: str) -> str:
    """What a verb is without its ending: a doubled letter once, a silent e again."""
    if stem in _SILENT or stem.endswith(("v", "u", "dg", "ang", "rg", "at", "iz", "bl", "gl")):
        short = stem in ("eat", "beat", "seat", "float", "treat", "cheat", "hang", "bang", "coat")
        return stem if short else stem + "e"
    if stem.endswith("i"):
        return stem[:-1] + "y"
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in _KEPT_DOUBLE + "aeiou":
        return stem[:-1]
    return stem


def _vowel(stem: str) -> bool:
    return any(letter in "aeiouy" for letter in stem)
