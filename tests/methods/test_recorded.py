"""Every method computes the numbers that were recorded when its code equalled the authors'."""

import json

import pytest

from tests.methods.recorded import FILE, cases, numbers

RECORDED = json.loads(FILE.read_text()) if FILE.exists() else {}
# Their authors' whole models are compared with reference files alone, which a public clone does not have
OUTSIDE = ("mv_adapter", "plevu", "dgl", "dgl_transformer", "vop", "vop_fc", "umt", "umt4clip", "sta", "testa", "lpi")


@pytest.mark.parametrize("case", [c if c in OUTSIDE else pytest.param(c, marks=pytest.mark.slow) for c in cases()])
def test_a_method_trains_and_searches_as_recorded(case):
    found = numbers(case)
    assert (found is not None) == (case in RECORDED), "record it: python -m tests.methods.recorded"
    if found is None:
        pytest.skip("the tiny backbone does not take this preset")
    for what, values in RECORDED[case].items():  # sums over a tensor cancel: compare them with the size of its numbers
        assert found[what] == pytest.approx(values, rel=1e-3, abs=max([2e-5, *(1e-3 * v for v in values[:1])])), what
