"""UMT question answering: a small decoder ranks a list of answers to a question about a video by their scores.

Li et al., arXiv:2303.16058, as in its authors' code for MSRVTT-QA; the three rows of TempMe's table 7
(arXiv:2409.01156). The towers are in backbone/umt.py and bert.py, decoder and ranking in backbone/answer_decoder.py:

    Q = BERT(question; E)  through text and fusion layers, E the tokens of the video
    loss = (sum over the pieces of each answer of cross-entropy) / questions
    score of an answer = log p(first piece) - loss, for the `k` answers with the most probable first pieces

All weights except the retrieval heads are trained. `attends=frame` is UMT4Clip, whose tokens a `reducer` can merge,
with the schedule of TempMe's other B/16 towers, as in methods/umt.py. The schedule with 111.5 GMACs is not published.

Differences: the list has the training answers of the tasks so far, most frequent first, because the authors' file of
answers is not public. Every question has one answer. The authors' forward pass gives its encoder one argument too many;
this is corrected. With a CLIP backbone, the towers have CLIP's sizes and tokenizer, but random weights. Dropout and
stochastic depth are omitted.

Shapes: B questions, L words, A token ids of an answer, N answers of the list (or tokens of a video), D width of the
text, E width of the tokens, k answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ctvr.methods.backbone.answer_decoder import (
    AnswerDecoder,
    answer_losses,
    answering_loss,
    question_states,
    rank_answers,
)
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.umt import OF_RETRIEVAL, Umt, UmtVision, like
from ctvr.methods.base import Batch, Capabilities, Method, Override, ParamGroup
from ctvr.methods.layers.reduction.config import REDUCERS, ReducerConfig
from ctvr.methods.layers.reduction.reducers import make_reducer
from ctvr.methods.layers.transfer import truncate
from ctvr.methods.settings import SettingError, group, require, setting
from ctvr.methods.umt import original

_QUESTIONS = "recipe file of MSRVTT-QA, B/16-17M"
# the recipe of MSRVTT-QA, from the 17M file, since the 25M file has the settings of L/16
PAPER = {
    "optim.name": "adamw",
    "optim.weight_decay": 0.02,
    "optim.epochs": 8,
    "optim.warmup": 0.125,
    "optim.grad_clip": None,
    "data.batch_size": 256,
    "data.num_frames": 12,
    "data.augment": "crop_flip",
    "evaluation.select": "best",
}


@dataclass(frozen=True, kw_only=True)
class UmtQAConfig:
    """Settings of UMT for questions, with ranges in search_spaces/."""

    lr: float = setting(2e-5, doc="learning rate of all weights", part="recipe")
    answers: int = setting(1500, doc="number of most frequent training answers that are candidates")
    k: int = setting(128, doc="number of candidates, selected by their first token, that are scored completely")
    attends: Literal["video", "frame"] = setting(
        "video",
        doc="tokens to which a patch attends. video: all tokens of the video; frame: the tokens of its frame "
        "(UMT4Clip)",
    )
    reducer: ReducerConfig = group(
        {name: REDUCERS[name] for name in UmtVision.reducers},
        "none",
        doc="token reduction in the vision tower, with attends=frame",
    )
    num_words: int = setting(25, doc="maximum number of tokens of a question, including [CLS]")
    answer_words: int = setting(5, doc="maximum number of tokens of an answer, including [CLS] and [SEP]")

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr")
        require(self, ">= 1", "answers", hint="The paper has 1500.")
        require(self, ">= 1", "k", hint="The paper has 128.")
        require(self, ">= 2", "num_words", hint="The paper has 25.")
        require(self, ">= 2", "answer_words", hint="The paper has 5.")
        if self.attends == "video" and self.reducer.name != "none":
            raise SettingError(
                f"<reducer.name>={self.reducer.name} merges tokens within frames", write="<attends>=frame"
            )


class UmtQA(Method):
    """UMT's towers with an answer decoder; towers and decoder are trained together."""

    Config = UmtQAConfig
    domain = "questions"
    PRESETS = {
        "paper": PAPER,
        "original": original(
            2e-5,
            8,
            0.125,
            {
                "method.num_words": (25, _QUESTIONS),
                "method.answer_words": (5, _QUESTIONS),
                "method.k": (128, _QUESTIONS),
            },
            _QUESTIONS,
        ),
        "shapes": {"method.lr": 2e-5},  # with optim.lr_scale=20: 4e-4, which suits the small backbone
        "umt4clip": Override({"method.attends": "frame"}),
        "umt4clip-tempme": Override({"method.attends": "frame", "method.reducer.name": "tempme"}),
    }

    def __init__(self, config: UmtQAConfig, backbone: Clip) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone if isinstance(backbone, Umt) else like(backbone)
        self.backbone.vision.attends = config.attends
        bert = self.backbone.text.bert
        with bert.word.weight.device:
            self.decoder = AnswerDecoder(
                bert.width,
                len(bert.layers) - bert.fusion_from,
                bert.heads,
                bert.hidden,
                len(bert.word.weight),
                bert.context_length,
            )
        if self.backbone.no_decoder:
            raise ValueError(
                f"backbone.weights: {self.backbone.no_decoder} Use a pre-training or question-answering checkpoint."
            )
        if self.backbone.decoder_state is not None:
            try:
                self.decoder.load_state_dict(self.backbone.decoder_state)
            except RuntimeError as error:
                raise ValueError(
                    "backbone.weights: the sizes of the answer decoder do not fit the towers. Use another checkpoint."
                ) from error
        self.reducer = make_reducer(config.reducer, self.backbone.vision)

    @classmethod
    def capabilities(cls, config: UmtQAConfig) -> Capabilities:
        return Capabilities(
            backbone_agnostic=True,
            needs_umt=True,
            required_num_frames=config.reducer.required_num_frames,
            uses_in_batch_negatives=False,
            accumulation="pairs",
        )

    def param_groups(self) -> list[ParamGroup]:
        own = [p for name, p in self.backbone.named_parameters() if not name.startswith(OF_RETRIEVAL)]
        params = [*own, *self.decoder.parameters(), *self.reducer.parameters()]
        return [ParamGroup(name="umt_qa", params=params, lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        """Compute the tokens that a question attends to: (B, T, 3, H, W) -> (B, N, E)."""
        return self.backbone.vision.tokens(frames, self.reducer.seams())[0]

    def _states(self, questions: Tensor, videos: Tensor) -> tuple[Tensor, Tensor]:
        """Encode questions (B, L') with their videos' tokens: states (B, L, D) and a mask (B, L) that is 1 at words."""
        most = min(self.config.num_words, self.backbone.text.bert.context_length)
        ids = self.backbone.text.without_end(truncate(questions, most + 1))[:, :most]
        return question_states(self.backbone, ids, videos), (ids != 0).long()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.answers is not None
        states, there = self._states(batch.tokens, self.encode_video(batch.frames))
        ids = batch.answers[:, : self.config.answer_words]
        losses = answer_losses(self.decoder(ids, states, there).float(), ids)
        return {"answer": answering_loss(losses, losses.new_ones(len(losses)), len(losses))}

    def rank_answers(self, questions: Tensor, videos: Tensor, answers: Tensor) -> Tensor:
        states, there = self._states(questions, videos)
        ids = answers[: self.config.answers, : self.config.answer_words]
        return rank_answers(self.decoder, states, there, ids, self.config.k)[0]
