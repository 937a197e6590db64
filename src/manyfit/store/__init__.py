"""Run folders, event logs, checkpoints, provenance and locks. Trackers are mirrors of the log."""
