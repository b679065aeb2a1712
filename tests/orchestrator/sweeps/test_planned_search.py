"""A search on imported features has the ranges and the baselines that fit them."""

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps.plan import plan_sweep, request_search
from tests.feature_stream import WIDTH, write_features


@pytest.mark.parametrize("width", [WIDTH, 64])
def test_a_search_on_features_has_a_tenth_to_ten_times_their_rates(tmp_path, width):
    write_features(tmp_path, width)
    execution = ExecutionConfig(runs=tmp_path / "runs")
    for method, name in (("clip4clip", "method.lr"), ("lwf", "base.lr"), ("framefusion_moe", "method.lr_text")):
        request = request_search(method, "mine", "s", {}, baselines=("zero_shot:chance", "zero_shot", "clip4clip"))
        plan = plan_sweep(request, execution)
        search = plan.searches[""]
        assert (search.space[name].lower, search.space[name].upper) == pytest.approx((1e-4, 1e-2))
        assert search.recommended_point[name] == search.paper_point[name] == 1e-3
        can_run = request.baselines if width == WIDTH else ("clip4clip",)  # zero-shot needs one width
        assert plan.request.baselines == can_run


def test_listed_rates_and_ranges_of_heads_stay(tmp_path):
    write_features(tmp_path)
    execution = ExecutionConfig(runs=tmp_path / "runs")
    listed = request_search("clip4clip", "mine", "s", {}, space_add=("method.lr=1e-5,2e-5",))
    assert plan_sweep(listed, execution).searches[""].space["method.lr"].categories == [1e-5, 2e-5]
    head = plan_sweep(request_search("head_linear", "mine", "s", {}), execution).searches[""].space["method.lr"]
    assert (head.lower, head.upper) == pytest.approx((1e-4, 1e-2))
