"""Reduce the tokens of the video tower: reducers, their settings and the plan of their steps."""
