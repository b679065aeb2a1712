"""A sweep of many trials on many nodes, in which nothing is trained: what it costs to drive one."""
