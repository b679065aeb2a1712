"""Every mistake on the command line gives one line that names the setting and a remedy."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from ctvr.methods.settings import SettingError
from ctvr.orchestrator.config import (
    build,
    closest,
    closest_setting,
    flatten,
    parse_overrides,
    select_prefix,
    unknown_setting,
)
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.setting_groups import likely_number
from ctvr.orchestrator.sweeps.settings_file import read_settings
from tests.refusing import refuses


@dataclass(frozen=True, kw_only=True)
class Sample:
    count: int = 1
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    is_on: bool = False
    pair: tuple[float, float] = (0.9, 0.999)
    limit: int | None = None
    several: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingError(f"<count> must be >= 1, got {self.count}", "Use 1.")


def test_text_becomes_the_type_of_the_field():
    made = build(Sample, {"count": "3", "rate": "1e-3", "kind": "b", "is_on": "true", "pair": "0.5,0.6", "limit": "7"})
    assert made == Sample(count=3, rate=1e-3, kind="b", is_on=True, pair=(0.5, 0.6), limit=7)


def test_none_is_understood_where_it_is_allowed():
    assert build(Sample, {"limit": "none"}).limit is None


def test_flatten_is_the_inverse_of_build():
    sample = Sample(count=4, pair=(0.1, 0.2))
    assert build(Sample, select_prefix(flatten(sample, "s"), "s"), "s") == sample


@pytest.mark.wording
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cuont": 1}, "optim.cuont: no such setting. Use optim.count=1."),
        ({"count": "many"}, r"optim.count: is not a whole number \(got 'many'\). Use optim.count=1."),
        ({"count": "4."}, r"optim.count: is not a whole number \(got '4.'\). Use optim.count=4.$"),
        (
            {"count": "2,4"},
            r"takes one value, not 2 \(got '2,4'\). Run each: ctvr sweep METHOD STREAM --vary optim.count=2,4$",
        ),
        ({"is_on": "maybe"}, "optim.is_on: is not true or false"),
        ({"pair": "1"}, "optim.pair: is not 2 numbers separated by commas .*Use optim.pair=0.9,0.999."),
        ({"several": "a,b"}, r"optim.several: is not numbers separated by commas \(got 'a,b'\)$"),
        ({"kind": "c"}, "optim.kind: is not one of a, b .got 'c'"),
        ({"count": 0}, "optim.count must be >= 1, got 0. Use 1."),
        ({"limit": "x"}, "optim.limit: is not a whole number or none .got 'x'"),
        ({"rate": "nan"}, "optim.rate: 'nan' is not a finite number"),
    ],
)
def test_a_mistake_is_one_line_with_name_value_and_remedy(values, message):
    with pytest.raises(ConfigError, match=message) as error:
        build(Sample, values, "optim")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr", "method.lr"),
        ("optim.lr", "method.lr"),
        ("Epochs", "optim.epochs"),
        ("optim.epoch", "optim.epochs"),
        ("batchsize", "data.batch_size"),
        ("optin.warmup", "optim.warmup"),
        ("sed", "seed"),
        ("colour", ""),
    ],
)
def test_a_setting_is_found_without_its_group_and_despite_a_slip(typed, meant):
    known = ["seed", "method.lr", "optim.lr_scale", "optim.epochs", "optim.warmup", "data.batch_size"]
    assert closest_setting(typed, known) == meant


def test_closest_returns_the_first_of_equally_close_names():
    assert closest("32", ["fp32", "tf32", "bf16"]) == "fp32"
    assert closest("msrvtt", ["msrvtt-10", "msrvtt-20", "msrvtt-qa"]) == "msrvtt-10"


@pytest.mark.wording
@pytest.mark.parametrize(
    ("error", "line", "settings", "write"),
    [
        (SettingError("<count> must be >= 1"), "optim.count must be >= 1.", ("optim.count",), ()),
        (
            SettingError("<count> and <rate> are numbers of pair", "Use <is_on>=false."),
            "optim.count and optim.rate are numbers of pair. Use optim.is_on=false.",
            ("optim.count", "optim.rate"),
            (),
        ),
        (
            SettingError("<count>=3 is too much", write="<count>=2"),
            "optim.count=3 is too much. Use optim.count=2.",
            ("optim.count",),
            ("optim.count=2",),
        ),
        (SettingError("the pair needs <is_on>=true"), "optim: the pair needs optim.is_on=true.", ("optim.is_on",), ()),
        (ValueError("discount must be >= 1"), "optim: discount must be >= 1", ("optim",), ()),
    ],
)
def test_an_error_of_a_dataclass_names_its_settings_as_typed(error, line, settings, write):
    @dataclass(frozen=True)
    class Refusing(Sample):
        def __post_init__(self) -> None:
            raise error

    with pytest.raises(ConfigError) as caught:
        build(Refusing, {}, "optim")
    assert (str(caught.value), caught.value.settings, caught.value.write) == (line, settings, write)
    with pytest.raises(ConfigError) as caught:
        build(Refusing, {}, "optim", dotted=False)
    assert str(caught.value).startswith("optim: ")
    assert "optim." not in str(caught.value)


@pytest.mark.parametrize("word", ["epochs", "=3", " =3"])
def test_a_word_without_a_name_and_value_is_refused(word):
    with refuses("name=value"):
        parse_overrides([word])


def test_a_setting_given_twice_with_two_values_is_refused():
    with refuses("'1'", "'2'", where="a.b"):
        parse_overrides(["a.b=1", "a.b=2"])
    assert parse_overrides(["a.b=1", "a.b=1", "c=x=y"]) == {"a.b": "1", "c": "x=y"}


HOSTILE_YAML = {
    "a key twice": ("optim.lr: 1\noptim.lr: 2\n", "'optim.lr' is given twice"),
    "a key twice, nested and dotted": ("optim:\n  lr: 1\noptim.lr: 2\n", "optim.lr is given twice"),
    "a tag that the text does not fit": ("a: !!bool perhaps\n", "cannot be read as YAML ('perhaps')"),
    "a tag of a time": ("a: !!timestamp soon\n", "cannot be read as YAML"),
    "a tag of a number without text": ("a: !!int ''\n", "cannot be read as YAML"),
    "a cycle": ("a: &a\n  b: *a\n", "is inside its own anchor"),
    "a cycle of lists": ("a: &a [*a]\n", "is inside its own anchor"),
    "a cycle of merges": ("a: &a {<<: *a}\n", "is inside its own anchor"),
    "lists of lists": (
        "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
        "more than 10000 values",
    ),
    "merges of merges": (
        "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)),
        "more than 10000 values",
    ),
    "a chain of aliases": ("a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 99)), "50 levels"),
    "depth": ("a: " + "[" * 20_000, "more than 50 levels"),
    "6000 digits": ("a: " + "9" * 6000, "more than 100 digits"),
    "hexadecimal digits": ("a: 0x" + "f" * 6000, "more than 100 digits"),
    "sixties": ("a: 1" + ":59" * 3000, "more than 100 digits"),
    "month 13": ("a: 2001-13-45", "month must be"),
    "an object": ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "length": ("a: " + "x" * (1 << 20), "is larger than 1 MB"),
    "two documents": ("a: 1\n---\nb: 2\n", "expected a single document"),
    "no mapping": ("[1]", "does not contain settings"),
    "nothing": ("", "does not contain settings"),
}


@pytest.mark.wording
@pytest.mark.parametrize("kind", HOSTILE_YAML)
def test_yaml_that_is_endless_or_ambiguous_is_one_line(kind, tmp_path):
    content, said = HOSTILE_YAML[kind]
    (tmp_path / "c.yaml").write_text(content)
    with refuses("--config") as error:
        read_settings(tmp_path / "c.yaml")
    assert said in str(error.value)
    assert len(str(error.value)) < 600


def test_anchors_and_merges_of_settings_are_read(tmp_path):
    text = "base: &b {lr: 1, epochs: 3}\noptim:\n  <<: *b\n  lr: 2\nmethod:\n  name: lwf\n  sizes: [1, 2]\n"
    (tmp_path / "c.yaml").write_text(text)
    found = read_settings(tmp_path / "c.yaml")
    assert {name: value for name, value in found.items() if not name.startswith("base")} == {
        "optim.lr": 2,
        "optim.epochs": 3,
        "method": "lwf",
        "method.sizes": [1, 2],
    }


def test_a_fifo_or_device_as_settings_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "c.yaml")
    for path in (tmp_path / "c.yaml", Path("/dev/zero"), tmp_path, tmp_path / "absent"):
        with refuses(settings=("--config",)):
            read_settings(path)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("1e\u20135", "1e-5"), ("10^-5", "1e-5"), ("5%", "0.05"), ("0,5", "0.5"), ("2epochs", "2"), ("16 GB", "16"),
     ("\u0663", "3"), ("\u22122", "-2"), ("1e", ""), ("2e-5*50", ""), ("three", ""), ("", ""), ("1.000,5", ""),
     ("1x10^-5", "1e-5"), ("1\u00b710\u22125", "1e-5"), ("~1e-5", "1e-5"), ("1/4", "0.25"), ("\u00bd", "0.5")],
)  # fmt: skip
def test_a_mistyped_number_is_the_one_that_was_meant(typed, meant):
    assert likely_number(typed) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("1e3", "1000"), ("1,000", "1000"), ("12 345", "12345"), ("16k", "16000"), ("1M", "1000000"), ("2**4", "16"),
     ("16.0x", "16"), ("0.5", ""), ("1/3", ""), ("0,001", ""), ("1e999", "")],
)  # fmt: skip
def test_a_whole_number_in_another_notation_is_the_one_that_was_meant(typed, meant):
    assert likely_number(typed, is_whole=True) == meant


@pytest.mark.parametrize(
    ("typed", "unit", "meant"),
    [("3days", "DAYS", "3"), ("1w 2d", "DAYS", "9"), ("72h", "DAYS", "3"), ("90min", "HOURS", "1.5"),
     ("1h30", "HOURS", "1.5"), ("1:30", "HOURS", "1.5"), ("2 d", "HOURS", "48"), ("yesterday", "DAYS", "")],
)  # fmt: skip
def test_a_duration_is_converted_to_the_unit_that_is_asked_for(typed, unit, meant):
    assert likely_number(typed, unit=unit) == meant


@pytest.mark.wording
def test_a_name_that_begins_several_settings_lists_them():
    known = ["method.lr_text", "method.lr_vision", "optim.epochs", "data.batch_size"]
    assert str(unknown_setting("lr", 1, known)) == "lr: no such setting. One of: method.lr_text, method.lr_vision."
    assert str(unknown_setting("bs", 16, known)) == "bs: no such setting. Use data.batch_size=16."
    assert str(unknown_setting("batch", 16, known)) == "batch: no such setting. Use data.batch_size=16."
