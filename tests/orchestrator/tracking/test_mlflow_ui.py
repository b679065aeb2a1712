"""MLflow's pages show third-party names literally, not as markup."""

import pytest

from ctvr.orchestrator.tracking.internals import NOTE
from ctvr.orchestrator.tracking.mlflow_ui import code, experiment_tags, plain


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("msrvtt-10", "msrvtt-10"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)&gt;"),
        ("[a](javascript:alert(1))", r"\[a\](javascript:alert(1))"),
        ("![a](https://host/x.png)", r"\!\[a\](https://host/x.png)"),
        ("**a** `b` &amp;", r"\*\*a\*\* \`b\` &amp;amp;"),
    ],
)
def test_a_name_is_no_markdown_and_no_html(name, shown):
    assert plain(name) == shown
    assert f"on **{shown}**. " in experiment_tags(name)[NOTE]


def test_a_span_of_code_ends_where_its_text_ends():
    assert code("a=`<b>`") == "`a='<b>'`"
