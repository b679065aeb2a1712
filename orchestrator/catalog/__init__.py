"""Describe methods, settings and presets to users."""
