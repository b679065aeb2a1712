"""Statistics of categories, and pseudo features drawn from them."""

import torch

from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.losses.etf import simplex_etf
from ctvr.methods.layers.replay.statistics import ClassStatistics, dispersion, mean_deviation, mean_dispersion


def filled() -> ClassStatistics:
    """Return statistics of two categories; texts spread by 0.1 and 0.2 around their means, videos by 1 and 2."""
    statistics = ClassStatistics()
    torch.manual_seed(0)
    for category, factor in ((3, 1.0), (5, 2.0)):
        center = torch.nn.functional.one_hot(torch.tensor(category), 8) * 4.0
        text, video = (center + spread * factor * torch.randn(4000, 8) for spread in (0.1, 1.0))
        pairs = torch.stack([text, video])
        statistics.add(category, pairs, pairs, normalise=False)
    return statistics


def test_the_spread_is_the_standard_deviation_of_one_coordinate():
    torch.testing.assert_close(filled().sigmas, torch.tensor([[0.1, 0.2], [1.0, 2.0]]), rtol=0.03, atol=0)


def test_means_have_length_one_if_asked():
    statistics = ClassStatistics()
    pairs = torch.stack([torch.ones(3, 4), 2 * torch.ones(3, 4)])
    statistics.add(0, pairs, pairs, normalise=True)
    torch.testing.assert_close(statistics.means, torch.full((2, 1, 4), 0.5))
    statistics.add(0, pairs, pairs, normalise=False)  # replaces the note of before
    assert len(statistics) == 1
    torch.testing.assert_close(statistics.means[:, 0, 0], torch.tensor([1.0, 2.0]))


def test_tasks_that_are_observed_are_their_categories_added_one_by_one():
    torch.manual_seed(0)
    one, other = ClassStatistics(), ClassStatistics()
    for numbers in ([4, 2, 4, 2, 2], [7, 2, 7, 7, 2]):  # category 2 comes again, and is replaced
        categories, pairs, aligned = torch.tensor(numbers), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
        one.observe(
            ((categories[part], pairs[:, part], aligned[:, part]) for part in (slice(0, 3), slice(3, 5))), False
        )
        for number in dict.fromkeys(numbers):
            other.add(number, pairs[:, categories == number], aligned[:, categories == number], False)
    assert one.categories.tolist() == [4, 7, 2]
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_drawn_features_have_the_spread_of_their_modality():
    statistics = filled()
    categories, text, video = statistics.draw(20_000)
    for row, category in enumerate((3, 5)):
        of = categories == category
        assert 9000 < int(of.sum()) < 11_000
        for modality, features in enumerate((text[of], video[of])):
            torch.testing.assert_close(features.mean(dim=0), statistics.means[modality, row], rtol=0, atol=0.1)
            sigma = statistics.sigmas[modality, row]
            torch.testing.assert_close(features.std(dim=0), sigma.expand(8), rtol=0.05, atol=0)


def test_a_given_spread_is_that_of_every_category():
    statistics = filled()
    categories, text, _ = statistics.draw(20_000, sigma=0.3)
    rows = (categories == 5).long()
    torch.testing.assert_close((text - statistics.means[0, rows]).std(), torch.tensor(0.3), rtol=0.03, atol=0)
    _, text, video = statistics.draw(200, sigma=0.0)
    assert len(text.unique(dim=0)) == len(video.unique(dim=0)) == 2


def test_the_dispersion_is_the_mean_distance_of_all_ordered_pairs():
    torch.manual_seed(0)
    features = torch.randn(5, 8)
    units = torch.nn.functional.normalize(features, dim=-1)
    far = [1 - float(units[i] @ units[j]) for i in range(5) for j in range(5) if i != j]
    torch.testing.assert_close(float(dispersion(features)), sum(far) / len(far), rtol=1e-5, atol=1e-6)
    assert float(dispersion(features[:1])) == 0


def test_a_batch_logs_the_deviation_of_categories_from_equal_angles():
    torch.manual_seed(0)
    features, categories = torch.randn(7, 8), torch.tensor([2, 5, 2, 9, 5, 2, 5])
    means = torch.stack([l2_normalize(features[categories == c]).mean(0) for c in (2, 5, 9)])
    centred = l2_normalize(means - means.mean(0))
    far = [abs(float(centred[i] @ centred[j]) + 1 / 2) for i, j in ((0, 1), (0, 2), (1, 2))]
    torch.testing.assert_close(float(mean_deviation(features, categories)), sum(far) / 3, rtol=1e-5, atol=1e-6)
    of_each = [float(dispersion(features[categories == c])) for c in (2, 5)]  # the third has one feature
    torch.testing.assert_close(float(mean_dispersion(features, categories)), sum(of_each) / 2, rtol=1e-5, atol=1e-6)
    assert float(mean_deviation(features, torch.zeros(7))) == 0
    simplex = simplex_etf(4, 8).float()  # every category on its prototype
    assert float(mean_deviation(simplex.repeat(2, 1), torch.arange(4).repeat(2))) < 1e-5
