"""Two metrics of text-to-video retrieval: nDCG with graded relevance, and mean average precision.

nDCG@k   DCG@k of the ranking / DCG@k of the best ranking,   DCG@k = sum_i (2^g_i - 1) / log2(1 + i)   [1]
         g_i = 2 if the video at rank i is relevant, 1 if it only has the category of the target, 0 otherwise
AP       mean over the relevant videos of (number of relevant videos up to its rank) / (its rank)

Both metrics are in percent. Videos with equal scores are ordered by column.
[1] Burges et al., Learning to rank using gradient descent, ICML 2005.
"""

import torch

K = 10


def ndcg(scores, queries, items):
    """Return the mean nDCG@K of scores (Q, V); queries have `target` and `relevant`, items have `category`."""
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
    """Return the mean AP over all queries, given scores (Q, V)."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    ranks = order.argsort(dim=1) + 1  # (Q, V) from 1
    found = []
    for row, query in zip(ranks, queries):
        hits = row[list(query.relevant)].sort().values
        found.append((torch.arange(1, 1 + len(hits)) / hits).mean())
    return {"map": 100 * torch.stack(found).mean().item()}
