"""What to search of each method, one file per method: data, beside nothing else.

FIXED: settings of every trial. SPACE: setting -> Ray Tune domain. PAPER: values of SPACE's settings to begin with,
the paper's where it prints them. UNPUBLISHED: the settings, of SPACE and others, whose value is printed neither for
the benchmark of the method's row (CTVR, BMU-MoCo, ...) nor, where it has none, in its own paper; it is then a released
code's or ours, as the remark beside the range says. DEVIATIONS: settings that preset `paper` has otherwise than the
paper's words, with what these say; why stands in the method's file. Tables name both (tables/footnotes.py).
CONFIGURATIONS: for rows of tables that are the method with a preset (methods.CONFIGURATIONS), what differs from the
above. LATER_TASKS: settings of SPACE that the first task does not read, by the method's own defaults: a grouped search
draws them in a group of trials that share their first task (`orchestrator/on_ray/grouped_sampler.py`); a name too many
costs time and no result. DEPTHS: settings that count blocks of the vision tower; a tower with fewer has as many values
as blocks. UPPER_BOUNDS: setting -> the setting that it must not exceed: of the points that a search draws, those above
are the same trial as the largest that can be. METRIC, MODE: what a search goes by without `search.metric`; for the
gain over zero-shot, which is in the union of all galleries, the CVLM protocol has the mean R@1.
"""
