"""Data sets of tensors, stored in a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

from manyfit.config.tree.project import project_root
from manyfit.core.errors import UsageError
from manyfit.store import durable
from manyfit.store.weights import read_tensors


class StoredTensors(Dataset[tuple[Tensor, ...]]):
    """Tensors of a safetensors file; a row is one entry of each."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError(f"there is no file {path} with the rows of the data set")
        found = read_tensors(path)
        self.tensors = [found[str(number)] for number in range(len(found))]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        return tuple(tensor[row] for tensor in self.tensors)


def write_tensors(tensors: Sequence[Tensor], split: str, folder: Path) -> str:
    """Store tensors in a run folder; return the path as its config names it.

    Other tensors of the same split are never replaced: a run that was trained with them may need them.
    """
    from safetensors.torch import save

    data = save({str(i): tensor.detach().cpu().contiguous() for i, tensor in enumerate(tensors)})
    file = folder / "data" / f"{split}.safetensors"
    if file.exists() and file.read_bytes() != data:
        file = file.with_stem(f"{split}-{hashlib.sha256(data).hexdigest()[:12]}")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write_file(file, data)
    root, here = project_root(folder).resolve(), file.resolve()
    return str(here.relative_to(root) if here.is_relative_to(root) else here)
