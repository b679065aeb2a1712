"""A method has the same style in every figure, and differs from all others in gray, too."""

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.figures.styles import ORDER, style_of, styles_of


def test_every_method_has_a_distinct_style_without_colour():
    assert set(EVERY_METHOD) | set(CONFIGURATIONS) <= set(ORDER), "append the new method to ORDER"
    assert len(set(ORDER)) == len(ORDER)
    looks = [style_of(name) for name in ORDER]
    assert len({(look.line, look.marker, look.is_hollow) for look in looks}) == len(ORDER)
    assert style_of("framefusion_moe").colour == "#D55E00"  # as in all published figures
    assert style_of("a_package:Method") == style_of("a_package:Method")


def test_rows_of_one_method_have_different_styles():
    rows = [("structalign:no-crp", "structalign"), ("structalign", "structalign"), ("lwf", "lwf")]
    styles = styles_of(rows)
    assert styles["structalign", "structalign"] == style_of("structalign")
    assert styles["lwf", "lwf"] == style_of("lwf")
    assert len({(style.line, style.marker, style.is_hollow) for style in styles.values()}) == 3
    many = [style_of("lwf", variant) for variant in range(7)]
    assert len({(style.line, style.marker, style.is_hollow) for style in many}) == 7
