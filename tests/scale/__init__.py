"""Cost of driving a sweep of many trials on many nodes, in which nothing is trained."""
