from dataclasses import dataclass
from typing import Annotated, Literal

from manyfit import Derived, Kind


@dataclass(frozen=True)
class Image:
    """Image settings of the network."""

    channels: int
    side: int = 8
    padding: Literal["zeros", "reflect", "circular"] = "zeros"
    note: Annotated[str, Kind.NEUTRAL] = ""
    features: Annotated[int, Derived(lambda image: image.channels * (image.side // 2) ** 2)] = 0
