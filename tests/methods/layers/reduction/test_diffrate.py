import torch

from ctvr.methods.layers.reduction.diffrate import merge_ranked, schedule
from ctvr.methods.layers.reduction.diffrate_search import DiffRateSearch
from ctvr.methods.layers.reduction.merge import plan_bipartite
from ctvr.methods.layers.reduction.sta import survivors
from ctvr.methods.prompt import Prompt, PromptConfig
from tests.methods.conftest import make_batch, make_task, reducer_config
from tests.methods.steps import train_task


def test_a_size_stays_above_zero_where_the_release_would_break():
    x = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    _, size = merge_ranked(x, x, torch.ones(1, 2, 1), 1)
    assert size.log().isfinite().all()


def test_tokens_are_compared_in_float32_whatever_the_towers_are():
    x, keys = torch.randn(2, 5, 40, 8), torch.randn(2, 5, 40, 8)

    def compare():
        ranked, size = merge_ranked(x[0], x[0], torch.ones(5, 40, 1), 20)
        return [plan_bipartite(keys[0], 9).kept, survivors(x, keys, 9), ranked, size]

    alone = compare()
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(found, wanted) for found, wanted in zip(compare(), alone))


def test_the_schedule_of_another_tower_is_the_released_one_in_proportion():
    pruned, merged = schedule(4, 17)
    assert (pruned[0], merged[-1]) == (17, 5)
    assert schedule(12, 197)[1][-1] == 49


def test_rate_search_trains_rates_alone_and_reaches_its_target(small_clip):
    """The search moves from half the tokens to nearly all; prompts stay in front of the ranked tokens."""
    settings = reducer_config("diffrate", search_macs=1e-3 * 0.65, search_step=1)
    method = Prompt(PromptConfig(reducer=settings), small_clip)
    search, batch = method.reducer, make_batch(4, 3)
    assert isinstance(search, DiffRateSearch)
    assert search.counts() == [(17, 17), *[(10, 10)] * 3]  # 1 + ceil of the mean of 1 .. 16
    far = abs(float(search.macs().detach()) / 1e9 - 1e-3 * 0.65)
    others = {name: p.detach().clone() for name, p in method.named_parameters() if "reducer" not in name}
    train_task(method, make_task(), [batch], lr=0.01)  # the task's gradient alone reaches block 1
    assert search.pruned[0].logits.grad.abs().sum() > 0
    optimizer = torch.optim.Adam(search.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        (1e6 * search.penalty()).backward()
        optimizer.step()
    assert abs(float(search.macs().detach()) / 1e9 - 1e-3 * 0.65) < far / 10
    assert all(torch.equal(p, others[name]) for name, p in method.named_parameters() if name in others)
    pruned, merged = zip(*search.counts())
    assert method.task_metrics()["prune_to/03"] == pruned[3]
    fixed = Prompt(PromptConfig(reducer=reducer_config("diffrate", prune_to=pruned, merge_to=merged)), small_clip)
    fixed.load_state_dict({name: value for name, value in method.state_dict().items() if "reducer" not in name})
    with torch.no_grad():
        found = fixed.eval().encode_video(batch.frames)
        assert torch.equal(method.eval().encode_video(batch.frames), found)
        method.begin_task(make_task(1))
        assert method.param_groups() == []
        assert torch.equal(method.train().encode_video(batch.frames), found)
    assert "macs" not in method.losses(batch)
