"""Tables, statistics and figures of runs and studies; independent of how they are trained."""
