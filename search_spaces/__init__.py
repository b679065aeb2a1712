"""What to search of each method, one file per method: data, beside nothing else.

FIXED: settings of every trial. SPACE: setting -> Ray Tune domain. PAPER: values of SPACE's settings to begin with,
the paper's where it prints them. UNPUBLISHED: the settings, of SPACE and others, whose value is printed neither for
the benchmark of the method's row (CTVR, BMU-MoCo, ...) nor, where it has none, in its own paper; it is then a released
code's or ours, as the remark beside the range says. DEPARTS: settings that preset `paper` has otherwise than the words
of the paper, with what these say; why stands in the method's file. Tables name both (`orchestrator/tables/marks.py`).
CONFIGURATIONS: for rows of tables that are the method with a preset (methods.CONFIGURATIONS), what differs from the
above. LATER: settings of SPACE that no task before the second reads, by the method's own defaults: a staged search
draws them anew within a group of trials that share their first task (`orchestrator/on_ray/staged.py`); a name too many
costs time and no result. BLOCKS: settings that count blocks of the vision tower; a tower with fewer has as many values
as blocks. AT_MOST: setting -> the setting that it must not exceed: of the points that a search draws, those above are
the same trial as the largest that can be. METRIC, MODE: what a search goes by if `search.metric` is not given; for the
gain over zero-shot, which is in the union of all galleries, the CVLM protocol has the mean R@1.
"""
