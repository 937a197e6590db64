"""Runs and studies → tables, statistics and figures. Nothing here knows how things are trained."""
