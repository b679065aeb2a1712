"""Query drift compensation: its equations, its invariants, and the authors' outputs (dipamgoswami/QDC@7491b19)."""

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch, Method, ParamGroup, Recipe, l2_normalize
from ctvr.methods.qdc import QDC, QDCConfig
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.conftest import make_batch, make_task
from tests.methods.released import FIXTURES, Weights, floats, read
from tests.methods.steps import begin, moved, train_stream
from tests.methods.tables import learned_tables

TOKENS = make_batch(5, 2, seed=9).tokens


def make(base: Method, **settings: object) -> QDC:
    return QDC(QDCConfig(**settings), copy.deepcopy(base))  # type: ignore[arg-type]


def three_tasks(base: Method, **settings: object) -> QDC:
    method = make(base, **settings)
    train_stream(method, tasks=3, steps=2)
    return method.eval()


# --- drift and queries


def test_the_toy_has_the_drift_and_the_queries_of_its_definition():
    old = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    new = torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    method = learned_tables(QDC(QDCConfig(), Method()), [old, new])
    torch.testing.assert_close(method.links[0].drift[0], torch.tensor([-0.4, 0.4]))
    found = method.encode_text(torch.tensor([[0], [1]]), 0)
    torch.testing.assert_close(found, torch.tensor([[0.98639, 0.16440], [0.55470, 0.83205]]), rtol=0, atol=1e-5)
    torch.testing.assert_close((found * old).sum(dim=1), torch.tensor([0.98639, 0.99846]), rtol=0, atol=1e-5)


def test_each_query_loses_the_drifts_since_its_videos_were_stored(base):
    method = three_tasks(base, renormalize=False)
    with torch.no_grad():
        plain = [method.encode_text(TOKENS, task) for task in range(3)]
        unit = l2_normalize(method.base.encode_text(TOKENS))
        drifts = [link.drift[0] for link in method.links]
    for task in range(3):
        torch.testing.assert_close(plain[task], unit - sum(drifts[task:], torch.zeros(len(drifts[0]))))
    method.config = QDCConfig()
    torch.testing.assert_close(method.encode_text(TOKENS, 0), l2_normalize(plain[0]))
    assert max(float(drift.norm()) for drift in drifts) <= 2


def test_current_task_has_the_features_of_the_plain_retriever(base):
    method = three_tasks(base)
    with torch.no_grad():
        own = method.base.encode_text(TOKENS)
        for task in (None, 2):
            assert torch.equal(method.encode_text(TOKENS, task), own)
        assert not torch.equal(method.encode_text(TOKENS, 0), own)
        method.gallery_is_fresh = True  # of videos that the present model has encoded
        assert torch.equal(method.encode_text(TOKENS, 0), own)
    assert torch.equal(method.encode_video(make_batch().frames), method.base.encode_video(make_batch().frames))


def test_features_that_move_by_one_vector_come_back_where_they_were():
    torch.manual_seed(0)
    old = l2_normalize(torch.randn(8, 5))
    shift = torch.tensor([0.1, -0.2, 0.0, 0.3, 0.1])
    new = old + shift
    method = QDC(QDCConfig(renormalize=False), Method())
    link = method.make_link(5, 1)
    link.fit(0, new, old)
    torch.testing.assert_close(link(new, 0), old, rtol=0, atol=1e-6)


def test_order_and_size_of_batches_change_the_drift_by_rounding_alone(base):
    found = []
    for size, flips in ((6, False), (2, False), (3, True)):
        method = make(base, query_weight=0.0, video_weight=0.0)
        begin(method, 0)
        method.end_task(make_task(0), [])
        begin(method, 1)
        moved(method)
        tokens = list(make_batch(6, 2, seed=4).tokens.split(size))
        batches = [Batch(torch.zeros(len(t), 1), t, torch.arange(len(t)), torch.arange(len(t))) for t in tokens]
        method.end_task(make_task(1), batches[::-1] if flips else batches)
        found.append(method.links[0].drift)
    assert float(found[0].norm()) > 1e-3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-6)


# --- losses


def test_each_weight_scales_its_own_term(base):
    method = make(base)
    train_stream(method, tasks=1, steps=1)
    begin(method, 1)
    moved(method)
    batch = make_batch()
    plain = method.losses(batch)
    method.config = QDCConfig(query_weight=3.0, video_weight=0.0)
    found = method.losses(batch)
    assert set(found) == {"contrastive", "query_distillation"}
    torch.testing.assert_close(found["query_distillation"], 3 * plain["query_distillation"])
    assert float(plain["video_distillation"].detach()) > 1e-4


# --- the release


def test_the_released_preset_names_the_place_of_every_value():
    recipe = presets_of("qdc")["released"]
    assert isinstance(recipe, Recipe)
    assert set(recipe.sources) == set(recipe)
    made = resolve({"method": "qdc", "stream": "s"}, presets=["released"]).settings
    assert (made["method.subtract"], made["method.renormalize"], made["base.lr"]) == ("all", False, 2e-5)


def test_the_release_subtracts_every_drift_from_every_query(base):
    method = three_tasks(base, subtract="all", renormalize=False)
    with torch.no_grad():
        unit = l2_normalize(method.base.encode_text(TOKENS))
        total = method.links[0].drift[0] + method.links[1].drift[0]
        for task in range(3):
            torch.testing.assert_close(method.encode_text(TOKENS, task), unit - total)
        assert torch.equal(method.encode_text(TOKENS), method.base.encode_text(TOKENS))  # in training


class TextTower(Method):
    """The reference's tiny text model for queries and documents; ids after the mask are 0."""

    def __init__(self, state: Weights) -> None:
        super().__init__()
        self.words = nn.Embedding(61, 12)
        self.fc, self.ln, self.proj = nn.Linear(12, 12), nn.LayerNorm(12, eps=1e-5), nn.Linear(12, 768)
        names = {"trunk.word_embeddings": "words", "trunk.fc": "fc", "trunk.ln_1": "ln", "proj": "proj"}
        self.names = {ours: theirs for theirs, ours in names.items()}
        self.load_state_dict({f"{names[n.rpartition('.')[0]]}.{n.rpartition('.')[2]}": w for n, w in state.items()})

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="all", params=list(self.parameters()), lr=0.1)]

    def _encode(self, ids: Tensor) -> Tensor:
        x = self.ln(torch.tanh(self.fc(self.words(ids))))
        mask = (ids != 0).float()[..., None]
        return l2_normalize(self.proj((x * mask).sum(dim=1) / mask.sum(dim=1)))

    def encode_video(self, frames: Tensor) -> Tensor:
        return self._encode(frames)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return self._encode(tokens)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        documents = self.encode_video(batch.frames)
        logits = 50 * self.encode_text(batch.tokens) @ documents.mT  # a query and its own document, then 7 negatives
        return {"contrastive": F.cross_entropy(logits, 8 * torch.arange(len(logits)))}


def check_release(compared, file: Weights) -> None:
    method = QDC(QDCConfig(), TextTower(floats(file, "state/")))
    method.begin_task(make_task(0))
    method.begin_task(make_task(1))  # the teacher is the model so far
    student = TextTower(floats(file, "state1/"))
    method.base.load_state_dict(student.state_dict())
    queries, documents = (
        file[f"batch0/{kind}_input_ids"] * file[f"batch0/{kind}_attention_mask"] for kind in ("query", "document")
    )
    rows = torch.arange(len(queries))
    batch = Batch(documents, queries, rows, rows)
    new, old = file["step/query_new"], file["step/query_old"]
    compared("qdc", "forward", method.encode_text(queries)[: len(new)], new)
    compared("qdc", "forward", method.teacher("encode_text", queries)[: len(old)], old)
    for weight in (0.0, 1.0):
        method.config = QDCConfig(query_weight=weight, video_weight=weight)
        loss = torch.stack(list(method.losses(batch).values())).sum()
        compared("qdc", "loss", loss, file[f"step/kd{weight:.0f}/loss"])
        method.zero_grad()
        loss.backward()
        for name, parameter in method.base.named_parameters():
            module, _, kind = name.rpartition(".")
            key = f"step/kd{weight:.0f}/grad/{method.base.names[module]}.{kind}"
            if key in file:
                compared("qdc", "gradients", parameter.grad, file[key])


def test_a_training_step_equals_the_released_one(compared):
    check_release(compared, read(FIXTURES / "qdc_released.npz"))


def test_a_training_step_equals_the_released_one_in_every_tensor(compared, shared):
    check_release(compared, read(Path(shared) / "reference" / "qdc" / "qdc_basic.npz"))
