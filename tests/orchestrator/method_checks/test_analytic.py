"""A method that learns without gradients passes the checks, and what it learns is counted."""

import pytest
import torch

from ctvr.methods import trust
from ctvr.methods.capabilities import capabilities_of
from ctvr.methods.tiny_models import EMBED_DIM
from ctvr.orchestrator.jobs.check_method import check_method
from ctvr.orchestrator.learning.evaluation.cost import trained_parameters
from ctvr.orchestrator.method_checks.opened_files import describe_opened, record_opened
from ctvr.orchestrator.method_checks.subject import Subject, learn
from tests.analytic_methods import RanPac, RanPacConfig, Ridge

D, M = EMBED_DIM, RanPacConfig().width


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "numbers"), [(RanPac, 3 * M * D + M * M), (Ridge, 3 * D * D)])
def test_a_method_without_gradients_passes_every_check_and_counts_its_buffers(cls, numbers):
    name = f"tests.analytic_methods:{cls.__name__}"
    trust([name])
    *lines, last = check_method(name)
    assert all(line.split()[1] == "ok" for line in lines)
    assert last.split(maxsplit=1)[0] == "opens"
    assert last.endswith("no file below its folders, at its import and in two steps")
    method = Subject.of(name).make()
    assert learn(method, 0) == []
    assert method.map.any()
    assert trained_parameters(method) == numbers


def test_the_files_that_a_plug_in_opens_are_listed_with_those_outside_the_key(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("known", "late", "unused"):
        (tmp_path / f"{name}.json").write_text("1")
    (tmp_path / "opening.py").write_text(
        "import pathlib\nfrom tests.analytic_methods import Ridge\nHERE = pathlib.Path(__file__).parent\n"
        "(HERE / 'known.json').read_text()\nclass Opening(Ridge):\n    Config = Ridge.Config\n"
        "    def end_task(self, task, loader):\n"
        "        (HERE / 'late.json').read_text()\n        super().end_task(task, loader)\n"
    )
    trust(["opening:Opening"])
    with record_opened() as opened:
        learn(Subject.of("opening:Opening").make(), 0)
    said = describe_opened("opening", opened)
    assert "known.json (in the key)" in said
    assert "late.json (not in the key)" in said
    assert "unused" not in said


def test_a_method_may_state_that_its_end_of_a_task_does_not_learn():
    class Stores(Ridge):
        @classmethod
        def capabilities(cls, config):
            return super().capabilities(config).__class__(learns_in_end_task=False)

    assert capabilities_of(Ridge, Ridge.Config()).learns_in_end_task
    assert not capabilities_of(Stores, Stores.Config()).learns_in_end_task


class Projected(Ridge):
    """A method that trains a vector and reverses its gradient before every step."""

    Config = Ridge.Config

    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.v, self.calls = torch.nn.Parameter(torch.zeros(D)), 0

    def param_groups(self):
        return [{"name": "v", "params": [self.v], "lr": 1e-3}]

    def losses(self, batch):
        return {"own": (self.v - 1).square().sum()}

    def before_step(self):
        self.calls += 1
        self.v.grad.neg_()


def test_the_checks_train_by_the_step_of_the_loop():
    name = f"{__name__}:Projected"
    trust([name])
    method = Subject.of(name).make()
    learn(method, 0, steps=3)
    assert method.calls == 3
    assert (method.v < 0).all()  # the reversed gradient
