"""Reduction of the tokens of the vision tower: reducers, their settings and the schedules of their steps."""
