"""What to search of each method, one file per method: data, beside nothing else.

FIXED: settings of every trial. SPACE: setting -> Ray Tune domain. PAPER: values of SPACE's settings to begin with,
the paper's where it prints them. UNPUBLISHED: the settings of SPACE whose value is printed neither for the
benchmark of the method's row (CTVR, BMU-MoCo, ...) nor, where it has none, in its own paper; PAPER then has a
released code's value or ours, as the remark beside the range says. Tables name them (`orchestrator/tables/build.py`).
CONFIGURATIONS: for rows of tables that are the method with a preset (methods.CONFIGURATIONS), what differs from the
above. BLOCKS: settings that count blocks of the vision tower; a tower with fewer has as many values as blocks.
METRIC, MODE: what a search goes by if `search.metric` is not given; for the gain over zero-shot, which is in the union
of all galleries, the CVLM protocol has the mean R@1.
"""
