"""A setting is declared once, with its facts."""

from dataclasses import MISSING, dataclass, fields

import pytest

from ctvr.methods.settings import group, groups_of, require, setting, settings_of, unpublished, variants_with_settings
from tests.refusing import refuses


@dataclass(frozen=True, kw_only=True)
class Parent:
    lr: float = setting(0.1, doc="learning rate", unpublished=True)
    rank: int = setting(4, doc="rank")


@dataclass(frozen=True, kw_only=True)
class Child(Parent):
    UNPUBLISHED = ("optim.warmup",)
    ROW_UNPUBLISHED = {"row": ("method.rank",)}

    rank: int = setting(8, doc="rank of the child", at_most="width")
    width: int = setting(doc="width")
    plain: int = 1


def test_a_setting_is_a_field_with_its_default():
    assert (Child(width=3).rank, Child(width=3, rank=2).rank, Child.lr) == (8, 2, 0.1)
    with pytest.raises(TypeError, match="width"):
        Child()
    assert {field.name: field.default for field in fields(Child)}["width"] is MISSING


def test_a_subclass_can_declare_a_setting_again():
    facts = settings_of(Child)
    assert (facts["rank"].doc, facts["rank"].at_most, facts["lr"].unpublished) == ("rank of the child", "width", True)
    assert settings_of(Parent)["rank"].at_most is None
    assert "plain" not in facts


def test_row_overrides_the_unpublished_settings_of_its_class():
    assert unpublished(Parent) == ("method.lr",)
    assert unpublished(Child) == unpublished(Child, "another") == ("method.lr", "optim.warmup")
    assert unpublished(Child, "row") == ("method.rank",)


@dataclass(frozen=True, kw_only=True)
class Plain:
    name: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Ranked(Plain):
    rank: int = setting(4, doc="rank", at_most="width", depth=True)
    width: int = setting(8, doc="width")


VARIANTS = {"plain": Plain, "ranked": Ranked, "ranked_too": Ranked}


@dataclass(frozen=True, kw_only=True)
class Grouped:
    layer: Plain = group(VARIANTS, "ranked_too", doc="kind of layer")


def test_a_group_holds_its_default_variant_and_the_facts_of_all():
    assert Grouped().layer == Ranked(name="ranked_too")
    assert Grouped(layer=Plain()).layer.name == "plain"
    facts = settings_of(Grouped)
    assert list(facts) == ["layer.rank", "layer.width", "layer.name"]
    assert (facts["layer.rank"].at_most, facts["layer.rank"].depth) == ("layer.width", True)
    assert facts["layer.name"].doc == "kind of layer"
    assert groups_of(Grouped) == {"layer": VARIANTS}
    assert list(variants_with_settings(VARIANTS)) == [(Ranked, ("ranked", "ranked_too"))]


@pytest.mark.parametrize(
    ("bound", "inside", "outside"),
    [
        (">= 0", [0, 0.1, float("inf")], [-1e-9, float("nan")]),
        ("> 0", [1e-9, 5], [0, -1, float("nan")]),
        ("in [0, 1)", [0, 0.5], [1, -0.1, float("nan")]),
        ("in (0, 100]", [1, 100], [0, 101]),
        ("in [-1, 1]", [-1, 0, 1], [-1.1, 1.1]),
        ("in [0, inf)", [0, 1e9], [float("inf"), -1]),
    ],
)
def test_require_refuses_a_setting_outside_its_bound(bound, inside, outside):
    for rank in [None, *inside]:
        require(Parent(rank=rank), bound, "lr", "rank")
    for rank in outside:
        with refuses(rank, *bound.split()[1:], "8", kind=ValueError, settings=["rank"]):
            require(Parent(rank=rank), bound, "lr", "rank", hint="Use 8.")
