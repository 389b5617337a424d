"""FileBytes: an open model file, read at any place into memory of our own.

Not mapped: whoever touches mapped memory behind the end of a file that was cut short meanwhile, ends with SIGBUS, and
the server with him. A read that comes up short is an error like others. It costs the same, for what is mapped would be
copied anyway, and pages of the system's cache do not count as memory of the process.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from inference.errors import ModelFileError
from inference.formats.numbers import U8

CHUNK_BYTES = 1 << 20


class FileBytes:
    """Safe from any thread. Another file that takes the name later is not seen. Closed when nobody holds it any more.

    Raises ModelFileError when it is no regular, readable file.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():  # also keeps us from opening a pipe or a device
            raise ModelFileError(path, f"there is no file {path}")
        try:
            self._fd = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._fd).atexit = False  # a thread may still be reading then
            self.num_bytes = os.fstat(self._fd).st_size  # when it was opened
        except OSError as error:
            raise ModelFileError(path, f"the file can not be read ({error})") from error
        self.path = path

    def read(self, offset: int, num_bytes: int) -> U8:
        """(num_bytes,) from there on. Raises ModelFileError when they are not all there (any more)."""
        found = np.empty(num_bytes, np.uint8)
        num_read = 0
        try:
            while num_read < num_bytes:
                num_new = os.preadv(self._fd, [found[num_read:].data], offset + num_read)
                if num_new == 0:
                    size = os.fstat(self._fd).st_size
                    raise ModelFileError(
                        self.path, f"the file has {size} bytes now, it had {self.num_bytes}: cut short"
                    )
                num_read += num_new
        except OSError as error:
            raise ModelFileError(self.path, f"the file can not be read ({error})") from error
        return found

    def digest(self) -> str:
        """SHA-256 of the content, hex. Reads the whole file."""
        digest = hashlib.sha256()
        for offset in range(0, self.num_bytes, CHUNK_BYTES):
            digest.update(self.read(offset, min(CHUNK_BYTES, self.num_bytes - offset)).data)
        return digest.hexdigest()


def digest_files(files: Iterable[FileBytes]) -> str:
    """One digest over names and contents of several files, hex."""
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.path.name}\0{file.digest()}\0".encode())
    return total.hexdigest()
