"""Classification of English words into kinds, independent of their context, for tagger.py.

A word is looked up in the lists of lexicon.py. Other words are classified by their ending; without a known ending they
are nouns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from ctvr.methods.layers.language import lexicon


class Kind(Enum):
    """Kinds of words; the kind of a word does not depend on its context."""

    DETERMINER = auto()
    PRONOUN = auto()
    PREPOSITION = auto()
    TO = auto()
    CONJUNCTION = auto()
    BE = auto()
    MODAL = auto()
    HAVE = auto()
    DO = auto()
    NOT = auto()
    POSSESSIVE = auto()
    ADVERB = auto()
    ADJECTIVE = auto()
    NOUN = auto()
    VERB = auto()  # base form or -s form of a verb that is not also a noun
    EITHER = auto()  # base form or -s form of a verb that is also a noun
    ING = auto()
    ING_NOUN = auto()  # ends in -ing, and is a noun unless the context makes it a verb
    PAST = auto()
    MARK = auto()  # punctuation
    EDGE = auto()  # position before the first or after the last word


K = Kind


@dataclass(frozen=True)
class Lists:
    """Word lists of lexicon.py as sets."""

    closed: dict[str, Kind]
    verbs: frozenset[str]
    past: frozenset[str]
    either: frozenset[str]
    mostly_nouns: frozenset[str]
    ing_nouns: frozenset[str]
    ing_adjectives: frozenset[str]
    ed_others: frozenset[str]
    not_adverbs: frozenset[str]
    adjectives: frozenset[str]
    plurals: frozenset[str]
    articles: frozenset[str]
    subjects: frozenset[str]
    singular_subjects: frozenset[str]
    clauses: frozenset[str]
    uninflected: frozenset[str]
    human_adjectives: frozenset[str]
    places: frozenset[str]
    singular_in_s: frozenset[str]


@lru_cache(maxsize=1)
def lists() -> Lists:
    """Return the word lists of lexicon.py as sets, cached. A word in several lists has the first kind in `order`."""
    order = [
        (K.PRONOUN, lexicon.PRONOUNS), (K.BE, lexicon.BE), (K.MODAL, lexicon.MODALS), (K.HAVE, lexicon.HAVE),
        (K.DO, lexicon.DO), (K.NOT, lexicon.NEGATIONS), (K.CONJUNCTION, lexicon.CONJUNCTIONS),
        (K.DETERMINER, lexicon.DETERMINERS), (K.PREPOSITION, lexicon.PREPOSITIONS), (K.ADVERB, lexicon.ADVERBS),
    ]  # fmt: skip
    closed: dict[str, Kind] = {"to": K.TO, "'s": K.POSSESSIVE, "s": K.POSSESSIVE}  # some captions lack apostrophes
    for kind, words in order:
        for word in words.split():
            closed.setdefault(word, kind)
    either = frozenset(lexicon.NOUN_OR_VERB.split())
    named = (
        lexicon.MOSTLY_NOUNS, lexicon.ING_NOUNS, lexicon.ING_ADJECTIVES, lexicon.ED_OTHERS, lexicon.NOT_ADVERBS,
        lexicon.ADJECTIVES, lexicon.IRREGULAR_PLURALS, lexicon.ARTICLES, lexicon.SUBJECTS, lexicon.SINGULAR_SUBJECTS,
        lexicon.CLAUSES, lexicon.UNINFLECTED, lexicon.HUMAN_ADJECTIVES, lexicon.PLACES, lexicon.SINGULAR_IN_S,
    )  # fmt: skip
    verbs = frozenset(lexicon.VERBS.split()) | either
    return Lists(closed, verbs, frozenset(lexicon.IRREGULAR.split()), either, *(frozenset(n.split()) for n in named))


def stems(word: str, ending: str) -> list[str]:
    """Return possible base forms of a word with the ending s, ing or ed: `try` for `tries`, `make` for `making`."""
    body = word[: -len(ending)]
    if ending == "s":
        found = [body]
        if body.endswith("e"):
            found.append(body[:-1])
        if body.endswith("ie"):
            found.append(body[:-2] + "y")
        return found
    found = [body, body + "e"]
    if len(body) > 2 and body[-1] == body[-2]:
        found.append(body[:-1])
    if ending == "ed" and body.endswith("i"):
        found.append(body[:-1] + "y")
    return found


def base_form(word: str) -> str:
    """Return the base form of a verb that ends in -s; other words are returned unchanged."""
    if word in lists().verbs or not word.endswith("s"):
        return word
    return next((stem for stem in stems(word, "s") if stem in lists().verbs), word)


@lru_cache(maxsize=65536)
def kind_of(word: str) -> Kind:
    """Return the kind of a lower-case word, from the word lists or else from its ending."""
    known = lists()
    if word in known.closed:
        return known.closed[word]
    if not any(letter.isalnum() for letter in word):
        return K.MARK
    if not word[0].isalpha():
        return K.DETERMINER  # a number
    if word in known.adjectives or word in known.ing_adjectives:
        return K.ADJECTIVE
    if word in known.ing_nouns:
        return K.ING_NOUN
    if word in known.past:
        return K.PAST
    base = base_form(word)
    if base in known.verbs:
        return K.EITHER if base in known.either else K.VERB
    if word.endswith("ing") and len(word) > 4:
        return K.ING
    if word.endswith("ed") and len(word) > 3 and word not in known.ed_others:
        return K.PAST
    if word.endswith("ly") and len(word) > 3 and word not in known.not_adverbs:
        return K.ADVERB
    return K.ADJECTIVE if _is_compared(word) or _ends_like_an_adjective(word) else K.NOUN


def _is_compared(word: str) -> bool:
    """Return whether a word is a comparative or superlative: `older`, `biggest`, `happier`."""
    body = next((word.removesuffix(end) for end in ("er", "est") if word.endswith(end)), "")
    forms = (body, body + "e", body[:-1], body[:-1] + "y")
    return len(body) > 2 and any(form in lists().adjectives and len(form) > 2 for form in forms)


def _ends_like_an_adjective(word: str) -> bool:
    if word.endswith(("table", "cable", "octopus", "spoonful", "handful", "mouthful", "detective", "olive")):
        return word in ("adjustable", "adaptable", "portable")
    return len(word) > 5 and word.endswith(("ous", "ful", "less", "able", "ible", "ative", "astic", "istic", "esque"))
