"""Images and texts that a learner has made, written into the run folders before the step is committed."""

from __future__ import annotations

from manyfit.core.png import encode_grid
from manyfit.core.redaction import redact
from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary


def keep_pictures(cohort: Cohort, boundary: Boundary) -> None:
    """Write the images and texts of each run to `images/<name>/step-<step>.png` and `texts/….txt`."""
    for member, pictures in zip(cohort.members, cohort.learner.take_pictures(), strict=True):
        for name, grid in pictures.items():
            with cohort.guard(member):
                if isinstance(grid, str):
                    member.keep_sample(name, boundary.step, redact(grid).encode(errors="replace"))
                    continue
                member.keep_sample(name, boundary.step, encode_grid(grid))
