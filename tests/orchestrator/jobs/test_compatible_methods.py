"""`ctvr methods --backbone` states for each method whether it fits."""

from ctvr.methods import METHODS
from ctvr.orchestrator.cli.main import main
from tests.own_towers import SIGLIP, write_json


def test_each_method_fits_or_has_the_parts_that_the_backbone_lacks(tmp_path, capsys):
    assert main(["methods", "--backbone", write_json(tmp_path / "mine.json", SIGLIP)]) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "mine.json") in head
    found = {line.split()[0]: line.split()[1] for line in lines}
    assert {*METHODS} <= {*found}
    assert (found["clip4clip"], found["lora"], found["clip_vip"]) == ("fits", "fits", "needs")
