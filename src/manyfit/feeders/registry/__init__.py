"""Models that variants can name by their file: `toy:DebugToyModel`."""
