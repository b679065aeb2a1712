"""UMT's question-answering head: a small BERT decoder that generates an answer and ranks a fixed list of answers.

Li et al., arXiv:2303.16058, as in the authors' code (`multi_modality`), based on ALBEF, arXiv:2107.07651. The whole
text encoder, fusion layers included, encodes a question as states Q. The decoder's layers are post-norm and causal:

    x = LN(x + SelfAttn(x));  x = LN(x + CrossAttn(x, Q));  x = LN(x + MLP(x));  logits = LN(GELU(W x)) word^T + b

    loss = (sum over answers of weight * sum over their pieces of cross-entropy) / questions
    score of an answer = log p(first piece) - loss of the answer; the first piece counts twice, as in the released code
    only the k answers whose first pieces are most probable are scored; a tie if several answers have the same one

An answer is [CLS], its pieces and [SEP], cut to A ids. Id 0 is padding.

Shapes: B questions, L words of a question, A ids of an answer, N answers of the list, D width, W vocabulary size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.bert import BertLayer, bias_of, new_weights
from ctvr.methods.backbone.umt import Umt

_EPS = 1e-12


class AnswerDecoder(nn.Module):
    """Decoder layers that generate an answer; the defaults give the decoder of UMT-B/16."""

    def __init__(
        self,
        width: int = 768,
        layers: int = 3,
        heads: int = 12,
        hidden: int = 3072,
        vocabulary: int = 30522,
        places: int = 512,
    ) -> None:
        """Build a decoder with random weights; see `FusionBert` for the arguments."""
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        self.position, self.kind = nn.Embedding(places, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.layers = nn.ModuleList(BertLayer(width, heads, hidden, width) for _ in range(layers))
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=_EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary))  # the output matrix is `word.weight`
        new_weights(self)

    def forward(self, answers: Tensor, states: Tensor, there: Tensor) -> Tensor:
        """Compute the logits of the word piece that follows each id.

        Args:
            answers: (B, A) int64.
            states: (B, L, D) states of the questions, or (1, L, D) of one question for all answers.
            there: attention mask of the questions, (B, L) or (1, L), 1 where a question has a word piece.

        Returns:
            (B, A, W) logits.
        """
        length = answers.shape[1]
        x = self.norm(self.word(answers) + self.kind.weight[0] + self.position.weight[:length])
        behind = torch.ones(length, length, device=x.device).tril()
        own, asked = bias_of(behind * (answers != 0)[:, None, None, :], x), bias_of(there[:, None, None, :], x)
        for layer in self.layers:
            assert isinstance(layer, BertLayer)
            assert layer.crossattention is not None
            keys, values = layer.crossattention.keys_values(states)
            shape = (len(x), *keys.shape[1:])
            x = layer(x, own, (keys.expand(shape), values.expand(shape)), asked)
        return F.linear(self.transform_norm(F.gelu(self.transform(x))), self.word.weight, self.bias)


def question_states(umt: Umt, questions: Tensor, video: Tensor) -> Tensor:
    """Encode questions (B, L) without end marks and the tokens (B, N, E) of their videos as states (B, L, D)."""
    bert = umt.text.bert
    return bert.fuse(bert.read(questions), questions, bert.memory(video))


def answer_losses(logits: Tensor, answers: Tensor) -> Tensor:
    """Compute each answer's loss (B,), the sum of its pieces' cross-entropies, from logits (B, A, W) and ids (B, A)."""
    target = answers[:, 1:].masked_fill(answers[:, 1:] == 0, -100)
    return F.cross_entropy(logits[:, :-1].mT, target, ignore_index=-100, reduction="none").sum(dim=1)


def answering_loss(losses: Tensor, weights: Tensor, questions: int) -> Tensor:
    """Compute the loss of a batch, a scalar: the weighted sum of the answers' losses, divided by `questions`.

    Args:
        losses: (R,) losses of R answers from `answer_losses`; the answers of a question are consecutive.
        weights: (R,) relative frequency of each answer; the weights of a question sum to 1.
        questions: B, the number of questions.
    """
    return (weights * losses).sum() / questions


@torch.no_grad()
def rank_answers(
    decoder: AnswerDecoder, states: Tensor, there: Tensor, answers: Tensor, k: int = 128
) -> tuple[Tensor, Tensor]:
    """Rank the k answers whose first pieces are the most probable, best first.

    Args:
        decoder: the answer decoder.
        states: (B, L, D) states of the questions.
        there: (B, L), attention mask of the questions, 1 where a question has a word piece.
        answers: (N, A) int64, the list of answers.
        k: number of answers to score; of a list with fewer answers, all are scored (the released code fails).

    Returns:
        Indices (B, k) into `answers` and probabilities (B, k) of these answers, which sum to 1 for each question.
    """
    likely = decoder(answers[:1, :1].expand(len(states), 1), states, there)[:, 0].log_softmax(dim=-1)  # (B, W)
    first = likely[:, answers[:, 1]]  # (B, N)
    top = first.topk(min(k, len(answers)), dim=1)
    scores = []
    for number, rows in enumerate(top.indices):
        ids = answers[rows]
        logits = decoder(ids, states[number : number + 1], there[number : number + 1])
        scores.append(top.values[number] - answer_losses(logits, ids))
    found = torch.stack(scores).softmax(dim=1).sort(dim=1, descending=True)
    return top.indices.gather(1, found.indices), found.values
