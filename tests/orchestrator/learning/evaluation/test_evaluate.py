"""The protocol of CTVR: stored galleries, cumulative and own-task search, task-conditioned text."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ctvr.methods.base import Capabilities, Method
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation import metrics, spill
from ctvr.orchestrator.learning.evaluation.evaluate import (
    add_history,
    all_scores,
    caption_features,
    compute_ranks,
    encode_texts,
    final_scores,
    metrics_of,
    rank_scores,
)
from ctvr.orchestrator.learning.evaluation.ranking import Positions, Ranked
from ctvr.orchestrator.learning.record.run_state import Evaluation
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig

CPU = torch.device("cpu")


class Lookup(Method):
    """Looks up captions in a table; with task-conditioned text, the task scales the feature."""

    def __init__(self, table: torch.Tensor, prompts: bool = False) -> None:
        super().__init__()
        self.table, self.declared = table, Capabilities(task_conditioned_text=prompts)

    def encode_text(self, tokens: torch.Tensor, task: int | None = None) -> torch.Tensor:
        rows = self.table[tokens[:, 0]]
        return rows if task is None else rows * (1 + task)


def queries(first: int, count: int) -> Queries:
    return Queries(
        tokens=torch.arange(first, first + count)[:, None],
        target=torch.arange(count),
        twin=torch.full((count,), -1),
        names=tuple(f"v{first + i}#0" for i in range(count)),
    )


def final(scores, asked, sizes, method=None, is_cut=False):
    return final_scores(method or Method(), scores, asked, sizes, is_cut)


def measured(scores, asked, sizes):
    return metrics_of(rank_scores(final(scores, asked, sizes), asked, sizes, EvaluationConfig()), asked, sizes)


def scores_of(method, asked, galleries, config=EvaluationConfig()):  # noqa: B008 (frozen)
    return all_scores(method, caption_features(method, asked, config, CPU), galleries, config, CPU)


@pytest.fixture
def two_tasks():
    features = torch.nn.functional.normalize(torch.randn(12, 8, generator=torch.Generator().manual_seed(1)), dim=-1)
    noisy = features + 0.3 * torch.randn(12, 8, generator=torch.Generator().manual_seed(2))
    return noisy, [features[:5], features[5:]], [queries(0, 5), replace(queries(5, 7), task=1)]


class Words(Method):
    """Encodes a caption as words (B, N, 2) up to the longest of the pass; records its calls."""

    def __init__(self, text_is_frozen: bool) -> None:
        super().__init__()
        self.declared, self.passes = Capabilities(text_is_frozen=text_is_frozen), list[tuple[int, int]]()

    def encode_text(self, tokens: torch.Tensor, task: int | None = None) -> torch.Tensor:
        tokens = tokens[:, : int(tokens.argmax(dim=1).max())]
        tokens = tokens * (tokens < 99)
        self.passes.append(tuple(tokens.shape))
        return torch.stack([tokens, tokens**2], dim=-1)


@pytest.mark.parametrize("text_is_frozen", [False, True])
def test_captions_of_one_length_are_encoded_together_and_equal_ones_once(text_is_frozen):
    lengths = [7, 2, 5, 2, 7, 3]
    tokens = torch.zeros(6, 9, dtype=torch.int64)
    for row, length in enumerate(lengths):
        tokens[row, :length], tokens[row, length] = row + 1, 99
    tokens = torch.cat([tokens, tokens[:2]])
    method = Words(text_is_frozen)
    expected = torch.zeros(8, 7, 2)
    for row, words in enumerate(tokens):
        one = Words(False).encode_text(words[None])[0]
        expected[row, : len(one)] = one
    assert torch.equal(encode_texts(method, tokens, None, EvaluationConfig(batch_size=2), CPU), expected)
    assert method.passes == [(2, 2), (2, 5), (2, 7)]
    assert torch.equal(encode_texts(method, tokens[1:], None, EvaluationConfig(batch_size=2), CPU), expected[1:])
    assert len(method.passes) == (3 if text_is_frozen else 6)


class Moved(Lookup):
    """Encodes a caption once, and scales its feature for each task."""

    text_passes = 1

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(table, prompts=True)
        self.passes = 0

    def encode_text_once(self, tokens: torch.Tensor) -> torch.Tensor:
        self.passes += len(tokens)
        return self.table[tokens[:, 0]]

    def move_text(self, features: torch.Tensor, task: int) -> torch.Tensor:
        return features * (1 + task)


@pytest.mark.parametrize("batch_size", [5, 32])
def test_captions_that_are_moved_to_each_task_are_encoded_once_for_all(batch_size, two_tasks):
    table, galleries, asked = two_tasks
    config, method = EvaluationConfig(batch_size=batch_size), Moved(table)
    expected = list(caption_features(Lookup(table, prompts=True), asked, config, CPU))
    found = list(caption_features(method, asked, config, CPU))
    assert len(found) == len(galleries) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert method.passes == 12


def test_scores_do_not_depend_on_chunks(two_tasks):
    table, galleries, asked = two_tasks
    whole = scores_of(Lookup(table), asked, galleries)
    small = scores_of(Lookup(table), asked, galleries, EvaluationConfig(batch_size=2, query_chunk=3))
    torch.testing.assert_close(small, whole)
    torch.testing.assert_close(whole, table @ torch.cat(galleries).mT)


def test_prompts_by_task_score_every_block_with_its_own_task(two_tasks):
    table, galleries, asked = two_tasks
    scores = scores_of(Lookup(table, prompts=True), asked, galleries)
    torch.testing.assert_close(scores, torch.cat([table @ galleries[0].mT, 2 * table @ galleries[1].mT], dim=1))


@pytest.mark.parametrize(
    ("settings", "with_val", "without"),
    [
        ({"select": "last"}, None, None),
        ({"select": "last", "select_split": "val"}, None, None),
        ({"select": "best"}, "val", "test"),
        ({"select": "best", "split": "val"}, "val", "val"),
        ({"select": "best", "select_split": "same"}, "test", "test"),
        ({"select": "best", "select_split": "same", "split": "val"}, "val", "val"),
        ({"select": "best", "select_split": "test", "split": "val"}, "test", "test"),
        ({"select": "best", "select_split": "val"}, "val", "val"),
    ],
)
def test_the_best_epoch_is_chosen_on_validation_videos_where_there_are_any(settings, with_val, without):
    config = EvaluationConfig(**settings)
    assert config.selects_on(has_val=True) == with_val
    assert config.selects_on(has_val=False) == without


def test_metrics_agree_with_brute_force_over_both_galleries(two_tasks):
    table, galleries, asked = two_tasks
    scores = scores_of(Lookup(table), asked, galleries)
    found = measured(scores, asked, [5, 7])
    rank = [1 + sum(1 for j in range(12) if scores[i, j] > scores[i, i]) for i in range(12)]
    assert found.metrics["stream/t2v/r1"] == pytest.approx(100 * sum(r == 1 for r in rank) / 12)
    assert found.metrics["stream/t2v/meanr"] == pytest.approx(sum(rank) / 12)
    assert found.union[1] == pytest.approx(100 * sum(r == 1 for r in rank[5:]) / 7)
    own = [1 + sum(1 for j in range(5, 12) if scores[i, j] > scores[i, i]) for i in range(5, 12)]
    assert found.own[1] == pytest.approx(100 * sum(r == 1 for r in own) / 7)
    assert found.ranks["v3#0"] == (rank[3] - 1, 0, 1)
    assert all(o >= u for o, u in zip(found.own, found.union))  # a smaller gallery is never harder


def test_after_the_first_task_both_galleries_are_the_same(two_tasks):
    table, galleries, asked = two_tasks
    scores = scores_of(Lookup(table), asked[:1], galleries[:1])
    found = measured(scores, asked[:1], [5])
    assert found.own == found.union == [found.metrics["stream/t2v/r1"]]


def test_a_model_that_never_changes_has_no_forgetting_in_its_own_galleries(two_tasks):
    table, galleries, asked = two_tasks
    rows = []
    for t in (1, 2):
        scores = scores_of(Lookup(table), asked[:t], galleries[:t])
        rows.append(measured(scores, asked[:t], [5, 7][:t]))
    add_history(rows[1], [r.own for r in rows], [r.union for r in rows], "ctvr")
    assert rows[1].metrics["stream/t2v/bwf"] == 0
    assert rows[1].metrics["stream/t2v/bwf_union"] >= 0


def test_cvlm_adds_mean_sum_and_harmonic_mean():
    found = Evaluation(own=[30.0, 20.0], union=[0.0, 0.0])
    own = [[40.0], [30.0, 20.0]]
    add_history(found, own, own, "cvlm")
    assert found.metrics["stream/t2v/fr"] == 10.0
    assert found.metrics["stream/t2v/r1_mean"] == 25.0
    assert found.metrics["stream/t2v/hm"] == pytest.approx(metrics.harmonic_mean(own))


def test_twins_are_offset_to_their_own_task():
    asked = [queries(0, 2), Queries(torch.tensor([[2], [3]]), torch.tensor([0, 1]), torch.tensor([1, 0]))]
    scores = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 1], [0, 0, 3, 1]])
    assert measured(scores, asked, [2, 2]).metrics["stream/t2v/twin"] == 50.0


def test_equal_twins_are_each_found_with_probability_half():
    asked = [
        Queries(torch.tensor([[0], [1], [2]]), torch.arange(3), torch.tensor([1, 0, -1]), names=("a#0", "b#0", "c#0"))
    ]
    found = measured(torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]), asked, [3])
    names = ("r1", "r1_twins", "r1_no_twins", "twin", "r5")
    assert [found.metrics[f"stream/t2v/{name}"] for name in names] == pytest.approx([200 / 3, 50, 100, 50, 100])
    assert found.own == [pytest.approx(200 / 3)]
    assert found.ranks == {"a#0": (0, 1, 1), "b#0": (0, 1, 1), "c#0": (0, 0, 1)}
    assert found.v2t == {"a": (0, 1, 1), "b": (0, 1, 1), "c": (0, 0, 1)}


def test_counts_of_searching_videos_belong_to_the_videos_of_the_captions():
    """The second task's captions are not in the order of its videos, of which the first has none."""
    one = Queries(torch.tensor([[0]]), torch.tensor([0]), torch.tensor([-1]), names=("a#0",))
    two = Queries(torch.tensor([[1], [2]]), torch.tensor([2, 1]), torch.tensor([-1, -1]), names=("c#0", "b#0"))
    scores = torch.tensor([[2.0, 0, 1, 9], [3, 0, 1, 8], [4, 0, 1, 7]])  # columns a, without a caption, b, c
    found = measured(scores, [one, two], [1, 3])
    assert found.v2t == {"a": (2, 0, 1), "b": (0, 2, 1), "c": (1, 0, 1)}
    assert found.metrics["stream/v2t/medr"] == 2


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize("width", [8, 1])  # features of captions for each task: larger than the matrix, or smaller
@pytest.mark.parametrize("held", [spill.MEMORY_BUDGET, 0])  # bytes in memory; without any, neither features nor matrix
def test_ranks_without_the_matrix_are_those_with_it(prompts, width, held, two_tasks, monkeypatch):
    monkeypatch.setattr(spill, "MEMORY_BUDGET", held)
    table, galleries, asked = two_tasks
    table, galleries, config = (
        table[:, :width],
        [gallery[:, :width] for gallery in galleries],
        EvaluationConfig(query_chunk=5),
    )
    method, mapped = Lookup(table, prompts), []
    monkeypatch.setattr(spill.np, "memmap", lambda *a, of=np.memmap, **k: mapped.append(k["shape"]) or of(*a, **k))
    found = compute_ranks(method, asked, galleries, config, CPU, "ctvr")
    assert len(mapped) == (0 if held else 2 if prompts else 1)
    expected = rank_scores(final(scores_of(method, asked, galleries), asked, [5, 7]), asked, [5, 7], config)
    assert flat(found).keys() == flat(expected).keys()
    for name, counts in flat(expected).items():
        torch.testing.assert_close(flat(found)[name], counts, rtol=0, atol=0, equal_nan=True)
    assert compute_ranks(method, asked, galleries, config, CPU, "ctvr", is_scoring=False) is None


def flat(ranked: Ranked) -> dict[str, torch.Tensor]:
    """Return every tensor of a ranking by name."""
    found = {}
    for name, value in vars(ranked).items():
        parts = vars(value) if isinstance(value, Positions) else {"": value}
        found |= {f"{name} {part}": counts for part, counts in parts.items()}
    return found


class Centred(Method):
    """Transductive method with a different normalization in each direction."""

    def normalize_scores(self, scores):
        return scores - scores.mean(dim=0)

    def normalize_scores_v2t(self, scores):
        return scores - scores.mean(dim=1, keepdim=True)


def test_each_direction_and_each_own_gallery_is_calibrated_alone():
    scores = torch.randn(12, 12, generator=torch.Generator().manual_seed(3))
    asked = [queries(0, 5), queries(5, 7)]
    found = final(scores, asked, [5, 7], Centred())
    torch.testing.assert_close(found.to_videos, scores - scores.mean(dim=0))
    torch.testing.assert_close(found.to_captions, scores - scores.mean(dim=1, keepdim=True))
    block = scores[5:, 5:]
    torch.testing.assert_close(found.own[1], block - block.mean(dim=0))
    torch.testing.assert_close(found.own_to_captions[1], block - block.mean(dim=1, keepdim=True))
    assert Centred().declared.normalizes_scores
    ranked = rank_scores(found, asked, [5, 7], EvaluationConfig())
    alone = rank_scores(final(block, asked[1:], [7], Centred()), [queries(5, 7)], [7], EvaluationConfig())
    assert ranked.own[5:].listed() == alone.to_videos.listed()
    assert ranked.own_videos[5:].listed() == alone.videos.listed()
    plain = rank_scores(final(scores, asked, [5, 7]), asked, [5, 7], EvaluationConfig())
    assert ranked.videos.listed() != plain.videos.listed()


def test_the_release_cuts_a_tasks_own_gallery_out_of_all_of_them():
    scores = torch.randn(12, 12, generator=torch.Generator().manual_seed(3))
    cut = final(scores, [queries(0, 5), queries(5, 7)], [5, 7], Centred(), is_cut=True)
    for parts, whole in ((cut.own, cut.to_videos), (cut.own_to_captions, cut.to_captions)):
        assert torch.equal(parts[0], whole[:5, :5])
        assert torch.equal(parts[1], whole[5:, 5:])


def test_the_sum_of_recalls_is_logged_in_both_directions(two_tasks):
    table, galleries, asked = two_tasks
    scores = scores_of(Lookup(table), asked, galleries)
    found = measured(scores, asked, [5, 7]).metrics
    for direction in ("t2v", "v2t", "v2t_captions"):
        assert found[f"stream/{direction}/rsum"] == sum(found[f"stream/{direction}/r{k}"] for k in (1, 5, 10))
    assert found["stream/v2t/r1"] == found["stream/v2t_captions/r1"]  # one caption per video
