"""Search spaces of the methods, one file per method.

FIXED: settings of every trial. SPACE: setting -> Ray Tune domain. PAPER: values of SPACE's settings where a search
begins, as far as they differ from the settings' defaults. CONFIGURATIONS: for rows of tables that are the method with a
preset (methods.CONFIGURATIONS), replacements of the above. METRIC, MODE: objective of a search without `search.metric`;
for the gain over zero-shot, which is in the union of all galleries, the CVLM protocol has the mean R@1.

Facts about a setting (not published, read by later tasks only, bounded by another setting, number of blocks) stand in
the method's Config: methods/settings.py.
"""
