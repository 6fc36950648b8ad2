"""Why could a tensor not be moved, and what is to be done? The one exception of the disk store, and its words."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

NO_UNLINK = (
    "This platform does not take the name off a file that is open, so a crash would leave the file behind: use "
    "offload_to_cpu, or Linux or macOS."
)
RUN_AGAIN = "Its gradient cannot be computed: run forward again, and see to it that nobody touches its file."


class OffloadError(RuntimeError):
    """A tensor could not be written to the file, or what is in the file is not what was written.

    Attributes:
        folder: where the file is.
        bytes_wanted, bytes_free: what was to be written or read, and what the folder's file system has left.
    """

    def __init__(self, what: str, folder: Path, bytes_wanted: int, advice: str):
        self.folder, self.bytes_wanted, self.bytes_free = folder, bytes_wanted, _free_bytes(folder)
        free = "unknown" if self.bytes_free is None else f"{self.bytes_free:,} B"
        super().__init__(f"{what}\nFolder: {folder}; wanted: {bytes_wanted:,} B; free there: {free}.\n{advice}")
        self._made_of = what, folder, bytes_wanted, advice

    def __reduce__(self) -> tuple:
        return OffloadError, self._made_of  # so that a worker process can hand it to its parent


def from_system(what: str, error: OSError, folder: Path, bytes_wanted: int) -> OffloadError:
    """The error to raise for one of the operating system's; ``what`` could not be done."""
    why = f"{error.strerror or error} ({errno.errorcode.get(error.errno, error.errno)})"
    return OffloadError(f"{what}: {why}.", folder, bytes_wanted, _advice(error, folder))


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _advice(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return (
            "Free some room, name a folder on a larger disk (offload_to_disk(folder=...)), or keep more in memory "
            "(a larger min_bytes, or a policy). Parameters and gradients are as they were before this step."
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "This process has no descriptor left: close files, raise `ulimit -n`, or share one offload_to_disk."
    if error.errno == errno.ENOENT:
        return "The folder does not exist: make it first, or name another (offload_to_disk(folder=...))."
    if isinstance(error, PermissionError) and os.access(folder, os.W_OK):
        return NO_UNLINK
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "The folder cannot be written to: name another (offload_to_disk(folder=...))."
    if error.errno == errno.ENOTDIR:
        return "That is a file: name a folder (offload_to_disk(folder=...))."
    return "Name another folder: offload_to_disk(folder=...)."
