"""What goes wrong with sound files: one error with a stable code, and a file that keeps what a C library hides."""

import errno
import io
import os
from pathlib import Path
from typing import IO, Any, cast


class MediaError(Exception):
    """A sound file could not be read or written, for the reason in `code`.

    reading   empty         no bytes, or no sound in them
              not_audio     something else than sound
              no_audio      a video without a sound track
              corrupt       damaged before its first frame
              unsupported   sound, but with a rate, channel count or length outside what is sane
              not_a_file    a folder, pipe, socket or device
              vanished      not there, or gone while it was read
              unreadable    no permission, or the disk fails
    writing   exists        the target is there, and the policy is to fail
              disk_full     no room, over quota, or over what the file system can hold
              unwritable    no permission, a read-only disk, a folder in the way
              unsupported   the format cannot hold this rate

    `facts` holds what a program needs; a message names the file and the cure.
    """

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts: dict[str, object] = facts


def name_for_humans(path: Path) -> str:
    """The file's name as it can be printed: undecodable bytes and line breaks are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in path.name)


def fault(code: str, path: Path, text: str, **facts: object) -> MediaError:
    """An error whose message begins with the file's name."""
    return MediaError(code, f"{name_for_humans(path)} {text}", path=str(path), **facts)


def reading_error(path: Path, error: OSError) -> MediaError:
    """What the system said when a file was read, as our error."""
    number = error.errno
    if number in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR):
        return fault("vanished", path, "is not there (any more). Check the path.", errno=number)
    if number in (errno.EISDIR, errno.ENXIO, errno.ELOOP):
        return fault("not_a_file", path, "is not a plain file.", errno=number)
    if number in (errno.EACCES, errno.EPERM):
        return fault("unreadable", path, "may not be read by this user. Change its permissions.", errno=number)
    return fault("unreadable", path, f"could not be read: {error.strerror}.", errno=number)


def writing_error(path: Path, error: OSError) -> MediaError:
    """What the system said when a file was written, as our error."""
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        text = f"does not fit on the disk: {error.strerror}. Free some space and retry."
        return fault("disk_full", path, text, errno=number)
    return fault("unwritable", path, f"can't be written: {error.strerror}.", errno=number)


class Guarded(io.RawIOBase):
    """A file under a C library: an OSError is kept for us to raise instead of being lost in a callback."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__()
        self._raw = raw
        self.error: OSError | None = None

    def readable(self) -> bool:
        return self._raw.readable()

    def writable(self) -> bool:
        return self._raw.writable()

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return cast(io.BufferedReader, self._raw).readinto(buffer)
        except OSError as error:
            self.error = self.error or error
            return 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self.error is None:
            try:
                done += self._raw.write(view[done:])
            except OSError as error:
                self.error = error
        return done

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        try:
            return self._raw.seek(offset, whence)
        except OSError as error:
            self.error = self.error or error
            return 0

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
