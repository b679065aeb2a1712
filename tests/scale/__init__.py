"""Cost of driving a sweep of many trials on many nodes, without training."""
