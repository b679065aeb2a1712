"""Two metrics of text-to-video retrieval: nDCG with graded relevance, and mean average precision.

nDCG@k   DCG@k of the ranking / DCG@k of the best ranking,   DCG@k = sum_i (2^g_i - 1) / log2(1 + i)   [1]
         g = 2 for a relevant video, 1 for another video of the same category, 0 otherwise
AP       mean over the relevant videos of: relevant videos up to its rank / its rank

[1] Burges et al., Learning to rank using gradient descent, ICML 2005. Both are in percent, and equal scores are ordered
by column.
"""

import torch

K = 10


def ndcg(scores, queries, items):
    """Return nDCG@K: scores (Q, V), Q queries with `target` and `relevant`, V items with `category`."""
    names = [item.category for item in items]
    gains = torch.tensor([[float(name == names[query.target]) for name in names] for query in queries])
    for row, query in zip(gains, queries):
        row[list(query.relevant)] = 3.0
    discounts = 1 / torch.log2(torch.arange(2, 2 + min(K, len(items))).float())
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :K]
    best = gains.sort(dim=1, descending=True).values[:, :K]
    found = (gains.gather(1, order) * discounts).sum(1) / (best * discounts).sum(1)
    return {f"ndcg{K}": 100 * found.mean().item()}


def mean_average_precision(scores, queries, items):
    """Return the mean of AP over all queries."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    ranks = order.argsort(dim=1) + 1  # (Q, V) from 1
    found = []
    for row, query in zip(ranks, queries):
        hits = row[list(query.relevant)].sort().values
        found.append((torch.arange(1, 1 + len(hits)) / hits).mean())
    return {"map": 100 * torch.stack(found).mean().item()}
