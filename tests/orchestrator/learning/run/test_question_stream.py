"""Streams of questions: the same loop and commits, with a list of answers instead of a search."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ctvr.orchestrator.data.questions import QuestionData
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.learning.evaluation.protocols import PROTOCOLS, EvaluationContext
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run.execute import Result, RunPaths, data_of, execute, source_of
from ctvr.orchestrator.learning.run.factory import load_tower
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses
from tests.small_stream import write_stream

SMALL = {
    "backbone.name": "tiny-clip",
    "backbone.weights": "shipped",
    "data.num_frames": 2,
    "data.batch_size": 4,
    "optim.epochs": 2,
    "optim.lr_scale": 50,
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    """Two tasks of one color each, with two questions per video; one test answer never occurs in training."""
    folder = tmp_path_factory.mktemp("asked")
    file = write_stream(folder, num_tasks=2, has_val=False)
    text = json.loads(file.read_text()) | {"name": "asked", "protocol": "qa"}
    for task in text["tasks"]:
        for split in ("train", "test"):
            for item in task[split]:
                item["captions"] = ["what color is it?", "what for?"]
                item["answers"] = [item["category"], split if item["video"].endswith("test_0") else "train"]
    file.write_text(json.dumps(text))
    return file


def experiment_on(manifest: Path, **settings: object) -> Experiment:
    return resolve({"method": "umt_qa", "stream": str(manifest), **SMALL, **settings})


def run(manifest: Path, root: Path, stop_after: int | None = None) -> Result:
    def report(task, record, seconds):
        if record.done == stop_after:
            raise KeyboardInterrupt

    return execute(experiment_on(manifest), RunPaths(root), report=report)


@pytest.fixture(scope="module")
def whole(manifest, tmp_path_factory) -> tuple[Result, Path]:
    root = tmp_path_factory.mktemp("whole")
    return run(manifest, root), root


def data_at(manifest: Path, root: Path) -> QuestionData:
    experiment, stream = experiment_on(manifest), load_stream(manifest, root)
    tower = load_tower(experiment, stream)
    source = source_of(stream, RunPaths(root).open_store(), experiment.data, tower)
    data = data_of(stream, source, experiment.data, tower, torch.device("cpu"))
    assert isinstance(data, QuestionData)
    return data


@pytest.mark.slow
def test_a_run_that_was_killed_equals_one_that_was_not(manifest, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(manifest, tmp_path, stop_after=1)
    resumed, (expected, _) = run(manifest, tmp_path), whole
    assert resumed.resumed == 1
    assert resumed.record.metrics == expected.record.metrics
    assert resumed.record.training == expected.record.training
    state = expected.method.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in resumed.method.state_dict().items())


@torch.no_grad()
def test_matrices_count_equal_answers_of_the_task_and_of_all_so_far(manifest, whole):
    result, root = whole
    data = data_at(manifest, root)
    assert data.candidates([0]) == ("red", "train")  # 4 of each: as they came
    assert data.candidates([0, 1]) == ("train", "red", "green")  # 8, 4, 4
    result.method.eval()
    for task in range(2):
        asked, hits = data.questions(task, "test"), {"own": 0, "union": 0}
        videos = torch.cat([result.method.encode_video(x) for x in data.videos(task, "test", range(3), 2)])
        for place, right in enumerate(asked.answers):
            for matrix, tasks in (("own", [task]), ("union", [0, 1])):
                listed = data.candidates(tasks)
                row = asked.video[place : place + 1]
                found = result.method.rank_answers(
                    asked.tokens[place : place + 1], videos[row], data.answer_ids(listed)
                )
                hits[matrix] += listed[int(found[0, 0])] == right
        assert result.record.own[1][task] == pytest.approx(100 * hits["own"] / 6)
        assert result.record.union[1][task] == pytest.approx(100 * hits["union"] / 6)
        assert hits["own"] <= 5  # "test" is not a training answer
    last = result.record.metrics[-1]
    assert last["stream/qa/accuracy"] == pytest.approx(sum(result.record.own[1]) / 2)
    assert last["stream/qa/forgetting_all"] == pytest.approx(result.record.union[0][0] - result.record.union[1][0])


class ByVideo:
    """Answers by the number that represents a question's video."""

    def __init__(self) -> None:
        self.asked: list[int] = []  # numbers of ranked answers

    def rank_answers(self, questions: Tensor, videos: Tensor, answers: Tensor) -> Tensor:
        self.asked.append(len(answers))
        return videos % len(answers)


def test_a_question_has_its_own_video_and_no_later_answer_is_ranked(manifest, whole):
    data, answers = data_at(manifest, whole[1]), {}
    galleries = [torch.tensor([[0], [1], [0]]), torch.tensor([[0], [1], [2]])]  # (V, 1)
    for task, sizes in ((0, [2]), (1, [2, 3, 2, 3])):
        method, here = ByVideo(), torch.device("cpu")
        stored, config = galleries[: task + 1], EvaluationConfig()
        context = EvaluationContext(
            method, data, task, "test", stored, config, here, lambda f, rows: f(rows), True, task
        )  # type: ignore[arg-type]
        answers[task] = PROTOCOLS["qa"].measure(context)
        assert method.asked == sizes
    # Of each video its color is asked, and what for ("test", then "train" twice). Ranked are red, train of task 1,
    # green, train of task 2, and train, red, green of both: so many of six answers are right
    assert answers[0].own == answers[0].union == [pytest.approx(100 * 3 / 6)]
    assert answers[1].own == pytest.approx([100 * 3 / 6, 100 * 3 / 6])
    assert answers[1].union == pytest.approx([100 * 2 / 6, 100 * 1 / 6])


def test_a_batch_holds_each_questions_own_answer(manifest, whole):
    data = data_at(manifest, whole[1])
    text = {tuple(row): name for name in ("train", "red", "green") for row in data.answer_ids([name]).tolist()}
    for batch in data.train_batches([1], seed=0, task=1, epoch=0):
        told = [text[tuple(row)] for row in batch.answers.tolist()]
        of_colour = (batch.tokens == data.tokens(["what color is it?"])[0, : batch.tokens.shape[1]]).all(dim=1)
        assert told == ["green" if is_colour else "train" for is_colour in of_colour.tolist()]


def changed(manifest: Path, tmp_path: Path, **fields: object) -> Path:
    text = json.loads(manifest.read_text())
    item = text["tasks"][0]["train"][0]
    for name, value in fields.items():
        item.pop(name) if value is None else item.update({name: value})
    (tmp_path / "changed.json").write_text(json.dumps(text | {"videos": str(manifest.parent / "videos")}))
    return tmp_path / "changed.json"


@pytest.mark.wording
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"answers": None}, "field 'answers' is missing"),
        ({"answers": ["red"]}, "answers: has 1 for 2 questions. Use one per question."),
        ({"answers": ["red", ""]}, r"answers\[1\]: is empty"),
        ({"twin": "red_train_1"}, "unknown field 'twin'"),
    ],
)
def test_a_manifest_of_questions_without_their_answers_is_one_line(manifest, tmp_path, fields, said):
    with pytest.raises(ConfigError, match=said):
        load_stream(changed(manifest, tmp_path, **fields), tmp_path)


def test_methods_and_streams_of_other_kinds_are_one_line(manifest, tmp_path):
    with refuses("clip4clip", where="method"):
        execute(resolve({"method": "clip4clip", "stream": str(manifest), **SMALL}), RunPaths(tmp_path))
    with refuses("umt_qa", "shapes-5", "clip4clip", where="method"):
        load_tower(
            resolve({"method": "umt_qa", "stream": "shapes-5", **SMALL}),
            load_stream("shapes-5", tmp_path, render=False),
        )


def test_a_model_of_questions_cannot_be_queried(manifest, whole, tmp_path):
    result, root = whole
    save_model(result.method, experiment_on(manifest).settings, data_at(manifest, root).stream, tmp_path / "model")
    with refuses("umt_qa", where="model"):
        load(str(tmp_path / "model"), ExecutionConfig(runs=root))


def test_another_answer_makes_another_stream(manifest, tmp_path):
    other = changed(manifest, tmp_path, answers=["red", "nothing"])
    assert load_stream(other, tmp_path).digest != load_stream(manifest, tmp_path).digest


def test_an_untrained_model_forgets_no_answer_of_a_task(manifest, tmp_path):
    untrained = execute(experiment_on(manifest, **{"optim.epochs": 0}), RunPaths(tmp_path))
    assert untrained.record.steps == 0
    assert untrained.record.metrics[-1]["stream/qa/forgetting"] == 0
