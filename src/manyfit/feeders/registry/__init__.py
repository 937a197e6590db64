"""Models that variants name by file and class: `toy:DebugToyModel`."""
