"""The table of costs has the figures of the papers next to ours."""

from __future__ import annotations

from ctvr.orchestrator.catalog import cost_table


def test_the_table_has_the_papers_figures_next_to_ours(monkeypatch):
    monkeypatch.setattr(cost_table, "ROWS", [row for row in cost_table.ROWS if row[0] in ("LoRA", "TempMe")][:2])
    table = cost_table.cost_table()
    assert "1 x 97" in table
    assert "507,648" in table
    assert "| 34.7  | 34.8" in table


def test_a_method_whose_paper_counts_otherwise_has_both_counts_computed(monkeypatch):
    monkeypatch.setattr(
        cost_table, "ROWS", [row for row in cost_table.ROWS if row[0] in ("FrameFusionMoE", "PLEVU", "UMT")][:3]
    )
    table = cost_table.cost_table()
    assert "41,417,226 (as printed: 46,801,933)" in table
    assert "6,350,336" in table
    assert "303.1" in table  # UMT's video tower over 12 frames
    assert not any(character.isdigit() for row in cost_table.ROWS for character in row[6] if len(row[6]) > 6)
