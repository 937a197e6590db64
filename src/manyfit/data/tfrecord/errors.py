"""Errors in record files."""

from __future__ import annotations

from manyfit.core.errors import UsageError


class RecordError(UsageError):
    """An invalid record file: the file, the record, and the reason.

    `what` is the reason in one word.
    """

    def __init__(self, file: object, reason: str, record: int | None = None, what: str = "corrupt") -> None:
        where = str(file) if record is None else f"{file}, record {record}"
        super().__init__(f"{where}: {reason}")
        self.file = str(file)
        self.record = record
        self.reason = reason
        self.what = what

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, str, int | None, str]]:
        return type(self), (self.file, self.reason, self.record, self.what)


class DataChanged(UsageError):
    """Files that have changed since they were indexed."""


class NotIndexed(UsageError):
    """Files that have not been indexed."""
