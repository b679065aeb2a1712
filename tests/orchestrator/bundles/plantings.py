"""Faults that are planted into bundles. The lists were written before the program that draws from them.

A fault changes the content `about` and `ranks` of a bundle in place. Its author then recomputes nothing, the digest
(`SEALED`), or table and digest (`FORGED`, which only computing the ranks again can find).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ctvr.orchestrator.bundles.bundle import ALL, OWN, Bundle
from ctvr.orchestrator.bundles.check import seal
from tests.orchestrator.bundles.small_bundle import copy_of, with_digest

About, Ranks = dict[str, Any], dict[str, np.ndarray]
Change = Callable[[About, Ranks], object]
SEED = 59


def _row(about: About, trained: bool = True) -> dict[str, Any]:
    """Return a row of a table: one that is compared with the best one."""
    found: dict[str, Any] = next(row for row in about["table"] if row["vs_best"] or not trained)
    return found


def _add(values: list[Any], place: int, by: float) -> None:
    values[place] += by


def _name(about: About, place: int, name: str) -> None:
    about["queries"][place] = name


def _exchange(values: list[Any], first: int, second: int) -> None:
    values[first], values[second] = values[second], values[first]


def _move_best(about: About, ranks: Ranks) -> None:
    for row in about["table"]:
        row["is_best"] = not row["is_best"]


OPEN: dict[str, Change] = {  # nothing is recomputed
    "a rank": lambda about, ranks: ranks[ALL][0, 0, -1].__setitem__(0, 1 + ranks[ALL][0, 0, -1, 0]),
    "a rank in the own gallery": lambda about, ranks: ranks[OWN][1, 0, -1].__setitem__(3, 1 + ranks[OWN][1, 0, -1, 3]),
    "a tie": lambda about, ranks: ranks[ALL][0, 1, -1].__setitem__(0, 1 - ranks[ALL][0, 1, -1, 0]),
    "the id of a query": lambda about, ranks: _name(about, 0, "other#0"),
    "the ids of two queries": lambda about, ranks: _exchange(about["queries"], 0, -1),
    "the id of a run": lambda about, ranks: about["runs"][0].update(id="f" * 32),
    "the digest": lambda about, ranks: about.update(digest="0" * 64),
    "the digest of the weights": lambda about, ranks: about["runs"][1]["made_of"].update(weights="fed"),
    "the digest of the stream": lambda about, ranks: about["runs"][1]["made_of"].update(stream="cba"),
    "the digest of the sources": lambda about, ranks: about["runs"][1]["made_of"].update({"code of the method": "9"}),
    "a setting": lambda about, ranks: about["runs"][1]["settings"].update({"optim.epochs": "1"}),
    "a version": lambda about, ranks: about["runs"][1]["versions"].update(python="3.12"),
}
SEALED: dict[str, Change] = {  # the digest is recomputed, the table is not
    "a cell": lambda about, ranks: _add(_row(about)["cells"]["r1"], 0, 0.01),
    "a std": lambda about, ranks: _add(_row(about)["cells"]["r1"], 1, -0.01),
    "forgetting": lambda about, ranks: _add(_row(about)["cells"]["bwf"], 0, -1.0),
    "a new cell": lambda about, ranks: _row(about)["cells"].update(r50=[99.0, None]),
    "a removed cell": lambda about, ranks: _row(about)["cells"].pop("medr"),
    "a difference": lambda about, ranks: _add(_row(about)["vs_best"], 0, 0.5),
    "the lower end of an interval": lambda about, ranks: _add(_row(about)["vs_best"], 1, 0.5),
    "the upper end of an interval": lambda about, ranks: _add(_row(about)["vs_best"], 2, -0.5),
    "p": lambda about, ranks: _add(_row(about)["vs_best"], 3, -0.001),
    "the best row": _move_best,
    "a name of a row": lambda about, ranks: _row(about).update(label="ours"),
    "a removed row": lambda about, ranks: about["table"].pop(),
    "a removed seed": lambda about, ranks: (_row(about)["runs"].pop(), _row(about)["seeds"].pop()),
    "a rank with its digest": lambda about, ranks: ranks[ALL][1, 0, -1].__setitem__(0, 200),
    "a rank after the first task": lambda about, ranks: ranks[OWN][1:3, 0, 0].__setitem__((slice(None), slice(12)), 9),
    "trained parameters": lambda about, ranks: about["runs"][1].update(parameters=0.0),
    "transductive scoring": lambda about, ranks: [
        r["tags"].update({"ctvr.transductive": "true"}) for r in about["runs"]
    ],
}


def _improve(ranks: Ranks, done: int, gallery: str = ALL) -> None:
    """Find every query of the first run first after `done` tasks."""
    ranks[gallery][0, :, done - 1] = 0


def _keep(about: About, ranks: Ranks, num_tasks: int, first: int = 0) -> None:
    """Keep the queries from number `first` on and of the first `num_tasks` tasks."""
    kept = [place for place, task in enumerate(about["orders"][0]) if place >= first and task < num_tasks]
    about["queries"] = [about["queries"][place] for place in kept]
    about["orders"] = [[order[place] for place in kept] for order in about["orders"]]
    for run in about["runs"]:
        run["commits"] = run["commits"][:num_tasks]
    for name, each in ranks.items():
        ranks[name] = each[:, :, :num_tasks, kept]


FORGED: dict[str, Change] = {  # of a bundle of two runs and three tasks; table and digest are recomputed
    "every query is found first": lambda about, ranks: _improve(ranks, 3),
    "every query was found first after the second task": lambda about, ranks: _improve(ranks, 2),
    "every query is found first in its own gallery": lambda about, ranks: _improve(ranks, 3, OWN),
    "one rank is better by one": lambda about, ranks: ranks[ALL][0, 0, -1].__setitem__(
        place := int(ranks[ALL][0, 0, -1].argmax()), ranks[ALL][0, 0, -1, place] - 1
    ),
    "one rank has a tie": lambda about, ranks: ranks[ALL][0, 1, -1].__setitem__(0, 1),
    "all ranks are better by one": lambda about, ranks: ranks[ALL].__setitem__(
        (0, 0), ranks[ALL][0, 0] - (ranks[ALL][0, 0] > 0)
    ),
    "two seeds are exchanged": lambda about, ranks: [each.__setitem__([0, 1], each[[1, 0]]) for each in ranks.values()],
    "a seed is a copy of the other": lambda about, ranks: [each.__setitem__(0, each[1]) for each in ranks.values()],
    "the queries of a task are renamed": lambda about, ranks: about["queries"].__setitem__(
        slice(3), about["queries"][2::-1]
    ),
    "a query is left out": lambda about, ranks: _keep(about, ranks, 3, first=1),
    "the last task is left out": lambda about, ranks: _keep(about, ranks, 2),
    "fewer trained parameters": lambda about, ranks: about["runs"][0].update(parameters=0.0),
    "another way of scoring": lambda about, ranks: about["runs"][0]["tags"].update({"ctvr.transductive": "true"}),
    "another setting": lambda about, ranks: about["runs"][0]["settings"].update({"optim.epochs": "1"}),
    "another seed": lambda about, ranks: about["runs"][0]["settings"].update(seed="7"),
    "other sources": lambda about, ranks: about["runs"][0]["made_of"].update({"code of the method": "0"}),
    "other weights": lambda about, ranks: about["runs"][0]["made_of"].update(weights="0"),
    "another stream": lambda about, ranks: about["runs"][0]["made_of"].update(stream="0"),
    "another commit": lambda about, ranks: about["runs"][1]["commits"].__setitem__(1, "0"),
}


assert len({*OPEN, *SEALED, *FORGED}) == len(OPEN) + len(SEALED) + len(FORGED)


def plant(bundle: Bundle, name: str) -> Bundle:
    """Return a bundle with a fault, and with the digests that the author of the fault recomputes."""
    about, ranks = copy_of(bundle)
    if name in OPEN:
        OPEN[name](about, ranks)
        return Bundle(about, ranks)
    if name in SEALED:
        SEALED[name](about, ranks)
        return with_digest(about, ranks)
    FORGED[name](about, ranks)
    return seal(about, ranks)


def drawn(*lists: Mapping[str, Change], count: int = 10) -> list[str]:
    """Draw faults of a list."""
    return random.Random(SEED).sample([name for each in lists for name in each], count)
