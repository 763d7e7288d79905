"""Read the tensors of a torch checkpoint or safetensors file, running nothing that stands in it."""

import io
import json
import math
import pickletools
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from ..base import ModelUnusable

MAX_FILE_BYTES: Final = 8 << 30
MAX_PROGRAM_BYTES: Final = 64 << 20  # the pickle without its tensors; a true one holds names and shapes only
MAX_TENSORS: Final = 100_000
_MAX_HEADER_BYTES: Final = 64 << 20

# torch's storage classes; bfloat16 has no numpy type, so its bits are read and widened.
_STORAGES: Final = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
_SAFETENSORS: Final = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "bf16",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}
# Classes that true checkpoints mention beside their tensors (training arguments, word lists). They are kept as
# inert marks, never imported.
_INERT_MODULES: Final = ("fairseq.", "omegaconf.", "typing")
_INERT_NAMES: Final = frozenset({"argparse.Namespace", "collections.defaultdict", "collections.Counter"})
_LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is still in its file."""

    shape: tuple[int, ...]
    dtype: str  # numpy's name of what `read` returns
    _read: Callable[[], NDArray[np.generic]]

    @property
    def nbytes(self) -> int:
        """Bytes once read."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def read(self) -> NDArray[np.generic]:
        """The values, a fresh array of `shape` and `dtype` (bfloat16 widened to float32).

        Raises:
            ModelUnusable: the file ends early or was changed meanwhile.
        """
        return self._read()


@dataclass(slots=True)
class Inert:
    """Something of a class that is not ours to make; it has a name and no behaviour."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str
    count: int


class _Mark:
    pass


class _Global:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def itemsize(dtype: str) -> int:
    """Bytes an item of `dtype` takes in the file."""
    return 2 if dtype == "bf16" else np.dtype(dtype).itemsize


def widened(dtype: str) -> str:
    """The numpy type that values stored as `dtype` are read into."""
    return "float32" if dtype == "bf16" else np.dtype(dtype).name


def _values(raw: bytes | memoryview, dtype: str) -> NDArray[np.generic]:
    if dtype == "bf16":
        bits = np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16
        return bits.view(np.float32)
    return np.frombuffer(raw, dtype=dtype)


def _strided(
    values: NDArray[np.generic], offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> NDArray[np.generic]:
    """A copy of the view (offset, shape, stride in items); the bounds were checked when it was described."""
    steps = tuple(s * values.itemsize for s in stride)
    return np.array(np.lib.stride_tricks.as_strided(values[offset:], shape, steps), copy=True, order="C")


class _Program:
    """Follows a pickle's instructions over plain values only.

    This is no unpickler: nothing is imported and nothing is called. Names of functions and classes stay names;
    the few that describe tensors and numpy scalars are understood here, a few harmless ones become `Inert`, and
    every other name ends the reading.
    """

    def __init__(self, where: str, tensor: Callable[[_Storage, int, Sequence[int], Sequence[int]], Tensor]) -> None:
        self._where = where
        self._tensor = tensor
        self._tensors = 0

    def run(self, stream: BinaryIO) -> object:
        """Follow one pickle from `stream` up to its STOP and return what it describes.

        Raises:
            ModelUnusable: the stream is no pickle, is cut off, or names something that is not allowed.
        """
        stack: list[object] = []
        memo: dict[int, object] = {}
        try:
            for op, arg, _ in pickletools.genops(stream):
                if op.name == "STOP":
                    return stack.pop()
                self._step(op.name, arg, stack, memo)
        except ModelUnusable:
            raise
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, EOFError) as error:
            raise ModelUnusable(f"{self._where} is damaged: its description cannot be followed ({error})") from error
        raise ModelUnusable(f"{self._where} is cut off inside its description")

    def _step(self, name: str, arg: object, stack: list[object], memo: dict[int, object]) -> None:
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(arg)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            stack.append(_Mark())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[_integer(arg)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[_integer(arg)])
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            _to_mark(stack)
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = tuple(stack[-count:])
            if len(items) != count:
                raise ValueError("stack underflow")
            del stack[-count:]
            stack.append(items)
        elif name == "TUPLE":
            stack.append(tuple(_to_mark(stack)))
        elif name == "LIST":
            stack.append(_to_mark(stack))
        elif name == "DICT":
            made: dict[object, object] = {}
            stack.append(_filled(made, _to_mark(stack)))
        elif name == "FROZENSET":
            stack.append(frozenset(_to_mark(stack)))
        elif name == "APPEND":
            value = stack.pop()
            _extend(stack[-1], [value])
        elif name == "APPENDS" or name == "ADDITEMS":
            values = _to_mark(stack)
            _extend(stack[-1], values)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _filled(stack[-1], [key, value])
        elif name == "SETITEMS":
            values = _to_mark(stack)
            _filled(stack[-1], values)
        elif name == "GLOBAL":
            stack.append(self._named(str(arg).replace(" ", ".", 1)))
        elif name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            stack.append(self._named(f"{module}.{last}"))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, what = stack.pop(), stack.pop()
            if not isinstance(arguments, tuple):
                raise ValueError("arguments are no tuple")
            stack.append(self._reduce(what, arguments))
        elif name == "NEWOBJ_EX":
            _, arguments, what = stack.pop(), stack.pop(), stack.pop()
            if not isinstance(arguments, tuple):
                raise ValueError("arguments are no tuple")
            stack.append(self._reduce(what, arguments))
        elif name == "BUILD":
            state = stack.pop()
            stack[-1] = self._built(stack[-1], state)
        elif name == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        else:
            raise ModelUnusable(f"{self._where} uses the pickle instruction {name}, which no checkpoint needs")

    def _named(self, name: str) -> object:
        name = name.replace("__builtin__.", "builtins.", 1)  # how protocol 2 spells it
        module, _, last = name.rpartition(".")
        if (
            name in _UNDERSTOOD
            or name in _INERT_NAMES
            or name.startswith(_INERT_MODULES)
            or (module in ("torch", "torch.storage") and (last in _STORAGES or last in _DTYPES))
        ):
            return _Global(name)
        raise ModelUnusable(
            f"{self._where} wants to run {name}; a checkpoint holds tensors and plain values only. Nothing was run.",
            wants=name,
        )

    def _reduce(self, what: object, arguments: tuple[object, ...]) -> object:
        if not isinstance(what, _Global):
            raise ValueError("something that is no name is called")
        name = what.name
        if name in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            storage, offset, shape, stride = arguments[:4]
            if not isinstance(storage, _Storage):
                raise ValueError("a tensor without storage")
            return self._one(storage, _integer(offset), _integers(shape), _integers(stride))
        if name in ("torch._utils._rebuild_parameter", "torch.nn.parameter.Parameter"):
            return arguments[0]
        if name == "collections.OrderedDict":
            return OrderedDict(arguments[0]) if arguments else OrderedDict()  # type: ignore[call-overload]
        if name in ("numpy.dtype",):
            return np.dtype(str(arguments[0])) if str(arguments[0]) in _NUMPY_TYPES else Inert(str(arguments[0]))
        if name in ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"):
            dtype, raw = arguments[:2]
            if not isinstance(dtype, np.dtype):
                return Inert("numpy scalar")
            return np.frombuffer(_raw(raw), dtype=dtype, count=1)[0].item()
        if name in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
            return Inert("numpy array")
        if name == "_codecs.encode":
            text, encoding = arguments[0], arguments[1] if len(arguments) > 1 else "latin1"
            if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
                raise ValueError("text in an odd encoding")
            return text.encode("latin1")
        if name == "torch.device":
            return str(arguments[0])
        if name == "torch.Size":
            return _integers(arguments[0])
        if name == "builtins.set":
            return set(arguments[0]) if arguments else set()  # type: ignore[call-overload]
        if name.startswith(("torch.", "numpy.")):
            raise ModelUnusable(f"{self._where} wants to run {name}; nothing was run.", wants=name)
        return Inert(name)

    def _built(self, target: object, state: object) -> object:
        # Attributes of an OrderedDict (`_metadata`) and of inert things carry no weights; a numpy type's state
        # holds its byte order.
        if isinstance(target, np.dtype) and isinstance(state, tuple) and len(state) > 1 and state[1] == ">":
            return target.newbyteorder(">")
        return target

    def _storage(self, pid: object) -> object:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[1], _Global)):
            raise ValueError("an outside reference that is no tensor storage")
        kind = pid[1].name.rpartition(".")[2]
        if kind not in _STORAGES:
            raise ValueError(f"storage of unknown kind {kind}")
        return _Storage(str(pid[2]), _STORAGES[kind], _integer(pid[4]))

    def _one(self, storage: _Storage, offset: int, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        self._tensors += 1
        if self._tensors > MAX_TENSORS:
            raise ModelUnusable(f"{self._where} describes more than {MAX_TENSORS} tensors")
        if offset < 0 or len(shape) != len(stride) or len(shape) > 8 or min((*shape, *stride, 0)) < 0:
            raise ValueError("a tensor with impossible shape")
        last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else offset - 1
        if last >= storage.count:
            raise ValueError("a tensor larger than its storage")
        if math.prod(shape) > 4 * max(storage.count, 1):
            raise ValueError("a tensor blown up from a small storage")
        return self._tensor(storage, offset, shape, stride)


_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS: Final = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
    ]
)
_EMPTY: Final[Mapping[str, Callable[[], object]]] = {
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
_UNDERSTOOD: Final = frozenset(
    {
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_parameter",
        "torch.nn.parameter.Parameter",
        "torch.device",
        "torch.Size",
        "collections.OrderedDict",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "_codecs.encode",
        "builtins.set",
    }
)
_DTYPES: Final = frozenset({"float32", "float16", "float64", "bfloat16", "int64", "int32", "int16", "int8", "uint8"})
_NUMPY_TYPES: Final = frozenset({"f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"})


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a number was expected")
    return value


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError("numbers were expected")
    return tuple(_integer(v) for v in value)


def _raw(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("latin1")
    raise ValueError("bytes were expected")


def _to_mark(stack: list[object]) -> list[object]:
    for at in range(len(stack) - 1, -1, -1):
        if isinstance(stack[at], _Mark):
            items = stack[at + 1 :]
            del stack[at:]
            return items
    raise ValueError("a mark is missing")


def _extend(target: object, values: list[object]) -> None:
    if isinstance(target, list):
        target.extend(values)
    elif isinstance(target, set):
        target.update(values)
    elif not isinstance(target, Inert):
        raise ValueError("items for something that is no list")


def _filled(target: object, flat: list[object]) -> object:
    if len(flat) % 2:
        raise ValueError("a key without value")
    if isinstance(target, dict):
        target.update(zip(flat[::2], flat[1::2], strict=True))
    elif not isinstance(target, Inert):
        raise ValueError("keys for something that is no dict")
    return target


class _Archive:
    """The zip container that torch has written since 1.6."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with zipfile.ZipFile(path) as archive:
            self._entries = {info.filename: info for info in archive.infolist()}
            self._sizes = {name: info.file_size for name, info in self._entries.items()}
            programs = [n for n in self._sizes if n == "data.pkl" or n.endswith("/data.pkl")]
            if any("/code/" in n for n in self._sizes) or any(n.endswith("constants.pkl") for n in self._sizes):
                raise ModelUnusable(
                    f"{path.name} is a TorchScript program, not a checkpoint; export the weights (a state dict) instead"
                )
            if len(programs) != 1:
                raise ModelUnusable(f"{path.name} is a zip archive but not a torch checkpoint (no data.pkl inside)")
            if sum(self._sizes.values()) > MAX_FILE_BYTES or self._sizes[programs[0]] > MAX_PROGRAM_BYTES:
                raise ModelUnusable(f"{path.name} would unpack to an unreasonable size")
            self._prefix = programs[0].removesuffix("data.pkl")
            order = self._prefix + "byteorder"
            if order in self._sizes and self._sizes[order] <= 16 and archive.read(order).strip() == b"big":
                raise ModelUnusable(f"{path.name} was written on a big-endian machine, which is not supported")
            self.program = archive.read(programs[0])

    def tensor(self, storage: _Storage, offset: int, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        name = f"{self._prefix}data/{storage.key}"
        if self._sizes.get(name, -1) < storage.count * itemsize(storage.dtype):
            raise ModelUnusable(f"{self._path.name} is cut off: the values of a tensor are missing ({name})")

        def read() -> NDArray[np.generic]:
            try:
                values = _values(self._member(name, storage.count * itemsize(storage.dtype)), storage.dtype)
            except (OSError, KeyError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError, zlib.error) as error:
                raise ModelUnusable(f"{self._path.name} is damaged: {error}") from error
            return _strided(values, offset, tuple(shape), tuple(stride))

        return Tensor(tuple(shape), widened(storage.dtype), read)

    def _member(self, name: str, length: int) -> bytes:
        """The first `length` bytes of a member; torch stores members as they are, so the directory, which
        would be parsed anew for each of a thousand tensors, is not needed again."""
        entry = self._entries[name]
        if entry.compress_type != zipfile.ZIP_STORED:
            with zipfile.ZipFile(self._path) as archive:
                return archive.read(name)
        with self._path.open("rb") as file:
            file.seek(entry.header_offset)
            head = file.read(30)
            if len(head) < 30 or head[:4] != b"PK\x03\x04":
                raise zipfile.BadZipFile(f"no entry where {name} should be")
            name_length, extra_length = struct.unpack("<HH", head[26:30])
            file.seek(entry.header_offset + 30 + name_length + extra_length)
            raw = file.read(length)
        if len(raw) < length:
            raise EOFError(f"{name} ends early")
        return raw


def _read_archive(path: Path) -> object:
    try:
        archive = _Archive(path)
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError, ValueError, zlib.error) as error:
        raise ModelUnusable(f"{path.name} is cut off or damaged: its zip directory cannot be read ({error})") from error
    return _Program(path.name, archive.tensor).run(io.BytesIO(archive.program))


def _read_legacy(path: Path) -> object:
    """The plain stream that torch wrote before 1.6: five pickles, then the storages one after another."""
    places: dict[str, tuple[int, int]] = {}  # key: first byte, items

    def tensor(storage: _Storage, offset: int, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        def read() -> NDArray[np.generic]:
            at, count = places[storage.key]
            with path.open("rb") as file:
                file.seek(at)
                raw = file.read(count * itemsize(storage.dtype))
            if len(raw) < count * itemsize(storage.dtype):
                raise ModelUnusable(f"{path.name} is cut off inside its tensors")
            return _strided(_values(raw, storage.dtype), offset, tuple(shape), tuple(stride))

        seen.setdefault(storage.key, storage)
        return Tensor(tuple(shape), widened(storage.dtype), read)

    seen: dict[str, _Storage] = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        # genops reads exactly up to STOP, so the same stream goes on to the next part. The cap keeps a file of
        # zeros from being read as one endless description.
        program = _Program(path.name, tensor)
        if program.run(file) != _LEGACY_MAGIC:
            raise ModelUnusable(
                f"{path.name} is a bare pickle, not a torch checkpoint; wanted is a voice's .pth file", kind="pickle"
            )
        program.run(file)  # protocol version
        program.run(file)  # word sizes of the machine that wrote it
        value = program.run(file)
        keys = program.run(file)
        if not isinstance(keys, list):
            raise ModelUnusable(f"{path.name} is damaged: its list of tensors is missing")
        for key in keys:
            head = file.read(8)
            if len(head) < 8:
                raise ModelUnusable(f"{path.name} is cut off before its tensors end")
            (count,) = struct.unpack("<q", head)
            storage = seen.get(str(key))
            if storage is None or count < storage.count:
                raise ModelUnusable(f"{path.name} is damaged: a tensor's values do not fit its description")
            at = file.tell()
            end = at + count * itemsize(storage.dtype)
            if end > size:
                raise ModelUnusable(f"{path.name} is cut off inside its tensors")
            places[str(key)] = (at, count)
            file.seek(end)
    missing = seen.keys() - places.keys()
    if missing:
        raise ModelUnusable(f"{path.name} is damaged: the values of {len(missing)} tensors are missing")
    return value


def _read_safetensors(path: Path) -> object:
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ModelUnusable(f"{path.name} is cut off or damaged: its header is longer than the file")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ModelUnusable(f"{path.name} is damaged: its safetensors header cannot be read") from error
    if not isinstance(header, dict):
        raise ModelUnusable(f"{path.name} is damaged: its safetensors header is no table")
    metadata = header.pop("__metadata__", {})
    weight: OrderedDict[str, Tensor] = OrderedDict()
    for name, entry in header.items():
        try:
            dtype = _SAFETENSORS[entry["dtype"]]
            shape = _integers(entry["shape"])
            begin, end = _integers(entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelUnusable(f"{path.name} is damaged: tensor {name!r} is described wrongly") from error
        start = 8 + length + begin
        if begin < 0 or min((*shape, 0)) < 0 or end - begin != math.prod(shape) * itemsize(dtype):
            raise ModelUnusable(f"{path.name} is damaged: tensor {name!r} has a wrong length")
        if 8 + length + end > size:
            raise ModelUnusable(f"{path.name} is cut off inside its tensors")
        weight[name] = Tensor(shape, widened(dtype), _span(path, start, end - begin, shape, dtype))
    return {"weight": weight, "metadata": metadata if isinstance(metadata, dict) else {}}


def _span(path: Path, start: int, length: int, shape: tuple[int, ...], dtype: str) -> Callable[[], NDArray[np.generic]]:
    def read() -> NDArray[np.generic]:
        with path.open("rb") as file:
            file.seek(start)
            raw = file.read(length)
        if len(raw) < length:
            raise ModelUnusable(f"{path.name} is cut off inside its tensors")
        return np.array(_values(raw, dtype).reshape(shape), copy=True)

    return read


_FOREIGN: Final = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"RIFF", "a sound file"),
    (b"fLaC", "a sound file"),
    (b"OggS", "a sound file"),
    (b"ID3", "a sound file"),
    (b"%PDF", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"Rar!", "a RAR archive; unpack it first"),
    (b"7z\xbc\xaf", "a 7-Zip archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"\xfd7zXZ", "an xz archive; unpack it first"),
    (b"\x89HDF", "an HDF5 file (Keras?)"),
    (b"GGUF", "a GGUF language model"),
    (b"IxFI", "a faiss index; give it as the voice's index, beside its .pth"),
    (b"IxFl", "a faiss index; give it as the voice's index, beside its .pth"),
    (b"IwFl", "a faiss index; give it as the voice's index, beside its .pth"),
    (b"IwFQ", "a faiss index; give it as the voice's index, beside its .pth"),
    (b"\x93NUMPY", "a numpy array"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (b"<!DOCTYPE", "a web page; the download went wrong"),
    (b"<!doctype", "a web page; the download went wrong"),
    (b"<html", "a web page; the download went wrong"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"SQLite format", "a database"),
)


def read_file(path: Path) -> object:
    """What the file describes: dicts, lists and plain values, with `Tensor` where tensors are.

    A safetensors file comes as {"weight": {name: Tensor}, "metadata": {…}}.

    Raises:
        ModelUnusable: missing, empty, cut off, of a foreign kind, or asking for code to be run. The message
            says what the file is.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ModelUnusable(f"{path.name} is not a file; wanted is a checkpoint", path=str(path))
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    if size == 0:
        raise ModelUnusable(f"{path.name} is empty; the copy or download went wrong", path=str(path))
    if size > MAX_FILE_BYTES:
        raise ModelUnusable(f"{path.name} is larger than any checkpoint ({size >> 30} GiB)", path=str(path))
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            raise ModelUnusable(f"{path.name} is {what}", path=str(path))
    try:
        if head.startswith(b"PK\x03\x04"):
            return _read_archive(path)
        if head[0] == 0x80:
            return _read_legacy(path)
        if size > 9 and head[8:9] == b"{":
            return _read_safetensors(path)
    except ModelUnusable:
        raise
    except (OSError, struct.error) as error:
        raise ModelUnusable(f"{path.name} is damaged: {error}", path=str(path)) from error
    if head.startswith(b"PK"):
        raise ModelUnusable(f"{path.name} is an empty or split zip archive", path=str(path))
    if b"ustar" in head or head[:3] == b"sys":
        raise ModelUnusable(
            f"{path.name} is a tar archive (a torch file from before 2017?); save it anew", path=str(path)
        )
    raise ModelUnusable(f"{path.name} is no checkpoint: its first bytes are of no kind known here", path=str(path))


def tensors_in(value: object) -> Iterator[tuple[str, Tensor]]:
    """The named tensors directly inside a mapping."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, Tensor):
                yield str(name), item
