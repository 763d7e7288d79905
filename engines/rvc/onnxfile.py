"""Describe a voice that was exported to ONNX, and cut it where its latent and its sine source pass; runs nothing.

The usual export takes phone, phone_lengths, pitch, pitchf, ds and rnd and renders all it is given, with a sine of its
own whose phase and noise start anew in every call. Cut in two, its front gives the latent and its back renders the
decoder frames that are asked for from a source that is made outside, like the networks of a `.pth` voice.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..base import MissingAsset, ModelUnusable
from .checkpoint import encoder_note
from .source import Merge

SUFFIX: Final = ".onnx"
LARGEST_BYTES: Final = 1 << 30  # a voice of full size has about 110 MB, and the format ends at 2 GiB
WANTED: Final = (
    "wanted is RVC's own export of a voice: one file with the inputs phone, phone_lengths, pitch, pitchf, ds and rnd"
)
PRIOR_SCALE: Final = 0.66666  # how far the latent is drawn from its mean; RVC's export leaves it to the caller
PORT: Final = "myna:"  # begins the names of the inputs of a cut part, so that none is taken

_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "phone": ("phone", "feats"),
    "lengths": ("phone_lengths", "p_len"),
    "pitch": ("pitch",),
    "f0": ("pitchf", "nsff0"),
    "speaker": ("ds", "sid"),
    "noise": ("rnd",),
}
_DOMAINS: Final = ("", "ai.onnx", "com.microsoft")
# Endless work, or code and files of somebody else's; no export of a voice has them.
_REFUSED: Final = ("Loop", "Scan", "EPContext", "PythonOp")
_FORWARDING: Final = ("Identity", "Cast", "Transpose", "Unsqueeze", "Squeeze", "Reshape", "Slice")
_PRE_KERNEL: Final = 7  # of the decoder's first convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxVoice:
    """A voice in an ONNX file that has been described but not loaded. Tensors are named as in the file."""

    path: Path
    version: str  # v1 (256 features) or v2 (768)
    features: int
    has_f0: bool
    rate_hz: int
    channels: int
    speakers: int
    embedder: str | None
    merge: Merge | None
    scaled: bool  # whether the file scales the prior's noise itself
    tensors: int
    bytes: int
    notes: tuple[str, ...]
    roles: Mapping[str, str]  # role → tensor
    latent: str  # tensor in which the front ends and the back begins
    source: str | None
    audio: str


def is_export(path: Path) -> bool:
    """Whether a file is to be read as an ONNX export: by its name, for the format has no magic number."""
    return path.suffix.lower() == SUFFIX


def open_export(path: Path) -> OnnxVoice:
    """Describe the exported voice in `path`, without torch or onnxruntime.

    Raises:
        ModelUnusable: it is missing, damaged, another network, or asks for what no voice needs: files of its own,
            operators of somebody else's, loops.
        MissingAsset: the package onnx is not installed.
    """
    return _Reading(path).described()


def parts(voice: OnnxVoice) -> tuple[bytes, bytes]:
    """The two networks of a voice, each as a model of its own, in float32 at their borders.

    Returns:
        The front: phone (1, frames, features), lengths (1,), noise (1, channels, frames), speaker (1,) and with f0
        pitch (1, frames) → latent (1, channels, frames). The back: latent (1, channels, n), speaker (1,) and with f0
        source (1, 1, n × hop) → audio (1, 1, n × hop).

    Raises:
        ModelUnusable, MissingAsset: as `open_export`; it has changed meanwhile.
    """
    reading, roles = _Reading(voice.path), voice.roles
    front = [(roles[role], role) for role in ("phone", "lengths", "noise", "speaker", "pitch") if role in roles]
    back = [(voice.latent, "latent"), (roles["speaker"], "speaker")]
    if voice.source is not None:
        back.append((voice.source, "source"))
    return reading.part(front, voice.latent), reading.part(back, voice.audio)


class _Reading:
    """One file's graph, checked, with who makes what."""

    def __init__(self, path: Path) -> None:
        try:
            import onnx
        except ImportError as error:
            raise MissingAsset(
                "voices that were exported to ONNX need the package onnx: pip install onnx", asset="onnx", where="pip"
            ) from error
        self.path, self._onnx = path, onnx
        try:
            self.bytes = path.stat().st_size
            if self.bytes > LARGEST_BYTES:
                raise self.refused(f"has {self.bytes / 1e9:.1f} GB; a voice has about 0.1")
            model = onnx.ModelProto()
            model.ParseFromString(path.read_bytes())
        except OSError as error:
            raise ModelUnusable(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
        except ModelUnusable:
            raise
        except Exception as error:  # protobuf's errors share no base class of their own
            raise self.refused("is no ONNX file, or is cut off or damaged") from error
        self.model, self.graph = model, model.graph
        if not self.graph.node:
            raise self.refused("is no ONNX file, or is an ONNX file without a network")
        self._must_be_harmless()
        self.constants = {t.name: t for t in self.graph.initializer}
        self._must_be_in_order()
        self.producers: dict[str, Any] = {out: n for n in self.graph.node for out in n.output if out}
        self.consumers: dict[str, list[Any]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)

    def refused(self, what: str, **facts: object) -> ModelUnusable:
        return ModelUnusable(f"{self.path.name} {what}; {WANTED}", path=str(self.path), **facts)

    def _elsewhere(self, what: str) -> ModelUnusable:
        return self.refused(f"is laid out otherwise than RVC's own export ({what})")

    # --- harmless ------------------------------------------------------------------------------------------

    def _must_be_harmless(self) -> None:
        own = {(f.domain, f.name) for f in self.model.functions}
        bodies = [self.graph.node, *(f.node for f in self.model.functions)]
        for node in (n for body in bodies for n in _all_nodes(body)):
            if node.op_type in _REFUSED:
                raise self.refused(f"holds the operator {node.op_type}, which no voice needs", operator=node.op_type)
            if node.domain not in _DOMAINS and (node.domain, node.op_type) not in own:
                raise self.refused(
                    f"needs the custom operator {node.op_type} of {node.domain}, which is code of somebody else's",
                    operator=node.op_type,
                )
        for tensor in self._tensors(bodies):
            if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
                where = next((e.value for e in tensor.external_data if e.key == "location"), "")
                if _leaves(where):
                    raise self.refused(f"asks for a file outside its own folder ({where})", location=where)
                raise self.refused(f"keeps its weights in another file ({where})", location=where)

    def _must_be_in_order(self) -> None:
        """As the format demands: what follows a chain of nodes upwards comes to an end."""
        made = {*self.constants, *(i.name for i in self.graph.input), ""}
        for node in self.graph.node:
            missing = [name for name in (*node.input, *_inner_names(node)) if name not in made]
            if missing or not made.isdisjoint(filter(None, node.output)):
                raise self.refused("is damaged: its nodes do not follow from one another")
            made.update(node.output)

    def _tensors(self, bodies: Iterable[Any]) -> Iterator[Any]:
        for graph in (self.graph, *_graphs_in(self.graph.node)):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for body in bodies:
            for node in _all_nodes(body):
                for attribute in node.attribute:
                    if attribute.HasField("t"):
                        yield attribute.t
                    yield from attribute.tensors

    # --- described -----------------------------------------------------------------------------------------

    def described(self) -> OnnxVoice:
        roles = self._roles()
        has_f0 = "pitch" in roles
        features = self._features(roles["phone"])
        if features not in (256, 768):
            raise self.refused(f"expects {features} content features; RVC voices have 256 (v1) or 768 (v2)")
        ups = [n for n in self.graph.node if n.op_type == "ConvTranspose"]
        if not ups:
            raise self._elsewhere("it has no upsampling layers")
        hop = math.prod(_whole(a) for n in ups for a in n.attribute if a.name == "strides")
        rate_hz = 100 * hop
        if not 8000 <= rate_hz <= 192000:
            raise self._elsewhere(f"its frames have {hop} samples")
        latent, channels = self._latent(ups[0])
        source, merge = self._source(ups[0]) if has_f0 else (None, None)
        metadata = self._metadata()
        said = metadata.get("samplingRate", metadata.get("sampling_rate", metadata.get("sr")))
        notes: list[str] = []
        if said is not None and str(said) not in (str(rate_hz), f"{rate_hz // 1000}k"):
            notes.append(f"the file says {said} Hz but its frames of 10 ms have {hop} samples, so it is {rate_hz} Hz")
        embedder = metadata.get("embedder")
        told = encoder_note(embedder)
        if told is not None:
            notes.append(told)
        speakers = self._speakers(roles["speaker"])
        if speakers is None:
            notes.append("the file does not tell how many speakers it has; only 0 is used")
        if "noise" not in roles:
            roles["noise"] = self._drawn(latent)
        return OnnxVoice(
            path=self.path,
            version="v1" if features == 256 else "v2",
            features=features,
            has_f0=has_f0,
            rate_hz=rate_hz,
            channels=channels,
            speakers=speakers or 1,
            embedder=str(embedder) if embedder else None,
            merge=merge,
            scaled=self._scaled(latent),
            tensors=len(self.constants),
            bytes=self.bytes,
            notes=tuple(notes),
            roles=roles,
            latent=latent,
            source=source,
            audio=self.graph.output[0].name,
        )

    def _roles(self) -> dict[str, str]:
        """Which input is what."""
        kinds = self._onnx.TensorProto
        floats, whole = (kinds.FLOAT, kinds.FLOAT16), (kinds.INT64,)
        given = {i.name: i for i in self.graph.input if i.name not in self.constants}
        roles: dict[str, str] = {}
        for role, names in _ROLES.items():
            found = next((name for name in names if name in given), None)
            if found is not None:
                roles[role] = found
        missing = [role for role in ("phone", "lengths", "speaker") if role not in roles]
        extra = sorted(set(given) - set(roles.values()))
        if missing or extra or ("pitch" in roles) != ("f0" in roles) or len(self.graph.output) < 1:
            raise self.refused(f"is an ONNX network of another kind (its inputs: {', '.join(sorted(given)) or 'none'})")
        for role, name in roles.items():
            allowed = whole if role in ("lengths", "pitch", "speaker") else floats
            if given[name].type.tensor_type.elem_type not in allowed:
                raise self.refused(f"takes {name} as {'whole numbers' if allowed is floats else 'another type'}")
        frames = given[roles["phone"]].type.tensor_type.shape.dim
        if len(frames) != 3:
            raise self.refused(f"takes {roles['phone']} with {len(frames)} axes, not 3")
        if frames[1].dim_value > 0:
            raise self.refused(f"was exported for exactly {frames[1].dim_value} frames, not for any number")
        return roles

    def _features(self, phone: str) -> int:
        told = next(i for i in self.graph.input if i.name == phone).type.tensor_type.shape.dim[2].dim_value
        if told > 0:
            return int(told)
        for node in self.consumers.get(phone, []):
            if node.op_type == "MatMul" and (weight := self._value(node.input[1])) is not None:
                return int(weight.shape[0])
        raise self._elsewhere("it does not tell how many content features it takes")

    def _latent(self, first_up: Any) -> tuple[str, int]:
        """The tensor that the decoder's first convolution takes, and its channels."""
        for node in self._above(first_up.input[0]):
            if node.op_type == "Conv" and (shape := self._shape(node.input[1])) and shape[2:] == (_PRE_KERNEL,):
                return node.input[0], shape[1]
        raise self._elsewhere("its decoder is not found")

    def _source(self, first_up: Any) -> tuple[str, Merge]:
        """The tensor that holds the sine source, and the trained last step that made it."""
        adds = [n for n in self.consumers.get(first_up.output[0], []) if n.op_type == "Add"]
        for add in adds:
            other = add.input[1] if add.input[0] == first_up.output[0] else add.input[0]
            noise = self.producers.get(other)
            if noise is None or noise.op_type != "Conv" or (self._shape(noise.input[1]) or (0, 0))[1] != 1:
                continue
            tensor = noise.input[0]
            maker = self.producers.get(tensor)
            while maker is not None and maker.op_type in _FORWARDING:
                maker = self.producers.get(maker.input[0])
            if maker is not None and maker.op_type == "Tanh":
                return tensor, self._merge(maker.input[0])
        raise self._elsewhere("its sine source is not found")

    def _merge(self, tensor: str) -> Merge:
        """weight · x + bias, of one harmonic."""
        factors: list[float] = []
        terms: list[float] = []
        node = self.producers.get(tensor)
        while node is not None and node.op_type in ("Add", "MatMul", "Mul", "Gemm", *_FORWARDING):
            follow = node.input[0]
            for at, name in enumerate(node.input if node.op_type not in _FORWARDING else ()):
                value = self._value(name)
                if value is None:
                    follow = name
                    continue
                if value.size != 1:
                    raise self._elsewhere(f"its sine source has {value.size} harmonics, RVC's has one")
                added = node.op_type == "Add" or (node.op_type == "Gemm" and at == 2)
                (terms if added else factors).append(float(value.reshape(-1)[0]))
            if node.op_type in ("MatMul", "Gemm"):
                break
            node = self.producers.get(follow)
        if len(factors) != 1 or len(terms) > 1:
            raise self._elsewhere("the last step of its sine source is not found")
        return Merge(factors[0], terms[0] if terms else 0.0)

    def _speakers(self, speaker: str) -> int | None:
        """Rows of the table that the speaker's number is looked up in."""
        waiting = [speaker]
        for name in waiting:  # grows as it is walked
            for node in self.consumers.get(name, []):
                if node.op_type in _FORWARDING:
                    waiting.append(node.output[0])
                elif node.op_type == "Gather" and node.input[1] == name and (shape := self._shape(node.input[0])):
                    return shape[0]
        return None

    def _drawn(self, latent: str) -> str:
        """The noise that an export without `rnd` draws itself."""
        drawn = [n for n in self._above(latent) if n.op_type == "RandomNormalLike"]
        if len(drawn) != 1:
            raise self._elsewhere(f"it has no input rnd and draws noise in {len(drawn)} places before its decoder")
        return str(drawn[0].output[0])

    def _scaled(self, latent: str) -> bool:
        for node in self._above(latent):
            if node.op_type == "Mul":
                for name in node.input:
                    value = self._value(name) if self._shape(name) in ((), (1,)) else None
                    if value is not None and abs(float(value.reshape(-1)[0]) - PRIOR_SCALE) < 1e-3:
                        return True
        return False

    def _metadata(self) -> Mapping[str, object]:
        """What exporters write beside the graph: plain keys, or one key `metadata` with a JSON object."""
        plain: dict[str, object] = {p.key: p.value for p in self.model.metadata_props}
        try:
            inner = json.loads(str(plain.get("metadata", "")))
        except ValueError:
            return plain
        return {**plain, **inner} if isinstance(inner, dict) else plain

    # --- graphs --------------------------------------------------------------------------------------------

    def _above(self, tensor: str) -> Iterator[Any]:
        """The nodes that `tensor` depends on, nearest first."""
        seen: set[str] = set()
        waiting = [tensor]
        while waiting:
            later: list[str] = []
            for name in waiting:
                node = self.producers.get(name)
                if node is None or name in seen:
                    continue
                seen.update(node.output)
                yield node
                later += [*node.input, *_inner_names(node)]
            waiting = later

    def _tensor(self, name: str) -> Any:
        """The constant of a name, through nodes that only pass it on; None: it is computed."""
        while True:
            if name in self.constants:
                return self.constants[name]
            node = self.producers.get(name)
            if node is None:
                return None
            if node.op_type == "Constant":
                return next((a.t for a in node.attribute if a.name == "value"), None)
            if node.op_type not in ("Identity", "Cast"):
                return None
            name = node.input[0]

    def _shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self._tensor(name)
        return None if tensor is None else tuple(tensor.dims)

    def _value(self, name: str) -> NDArray[Any] | None:
        """A constant's numbers; also of one that is only turned round on the way."""
        node = self.producers.get(name)
        turned = node is not None and node.op_type == "Transpose"
        tensor = self._tensor(node.input[0] if node is not None and turned else name)
        if tensor is None:
            return None
        try:
            value = np.asarray(self._onnx.numpy_helper.to_array(tensor))
        except (TypeError, ValueError) as error:
            raise self.refused(f"is damaged: the tensor {tensor.name} does not hold what it says") from error
        return value.T if turned else value

    def _kind(self, tensor: str) -> int:
        """The type of a tensor of floats, which the format does not write down: that of what it meets, else phone's."""
        given = {i.name: i.type.tensor_type.elem_type for i in self.graph.input}
        if tensor in given:
            return int(given[tensor])
        weight = next((n.input[1] for n in self.consumers.get(tensor, []) if n.op_type == "Conv"), None)
        while weight is not None and (node := self.producers.get(weight)) is not None:
            if node.op_type == "Cast":
                return next(int(a.i) for a in node.attribute if a.name == "to")
            if node.op_type == "Constant" or not node.input:
                break
            weight = node.input[0]
        found = None if weight is None else self._tensor(weight)
        return int(found.data_type if found is not None else given[self._roles()["phone"]])

    def part(self, inputs: Sequence[tuple[str, str]], output: str) -> bytes:
        """The nodes between `inputs` (tensor, role) and `output`, as a model with float32 borders."""
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        border = {tensor for tensor, _ in inputs}
        needed: set[str] = set()
        used: set[str] = set()
        waiting = [output]
        while waiting:
            name = waiting.pop()
            if name in used or not name:
                continue
            used.add(name)
            if name in border or name in self.constants:
                continue
            node = self.producers.get(name)
            if node is None:
                raise self._elsewhere(f"its parts hang together by {name}")
            needed.update(node.output)
            waiting += [*node.input, *_inner_names(node)]
        ports, before = [], []
        for tensor, role in inputs:
            if role in ("lengths", "pitch", "speaker"):
                ports.append(helper.make_tensor_value_info(PORT + role, kinds.INT64, None))
                before.append(helper.make_node("Identity", [PORT + role], [tensor]))
            else:
                ports.append(helper.make_tensor_value_info(PORT + role, kinds.FLOAT, None))
                before.append(helper.make_node("Cast", [PORT + role], [tensor], to=self._kind(tensor)))
        after = [helper.make_node("Cast", [output], [PORT + "output"], to=kinds.FLOAT)]
        graph = helper.make_graph(
            [*before, *(n for n in self.graph.node if not needed.isdisjoint(n.output)), *after],
            "part",
            ports,
            [helper.make_tensor_value_info(PORT + "output", kinds.FLOAT, None)],
            [t for t in self.graph.initializer if t.name in used],
        )
        model = helper.make_model(graph, opset_imports=self.model.opset_import, functions=self.model.functions)
        model.ir_version = self.model.ir_version
        return bytes(model.SerializeToString())


def _graphs_in(nodes: Iterable[Any]) -> Iterator[Any]:
    """All graphs inside nodes, at any depth."""
    for node in nodes:
        for attribute in node.attribute:
            inner = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
            for graph in inner:
                yield graph
                yield from _graphs_in(graph.node)


def _all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of the graphs inside them."""
    listed = list(nodes)
    yield from listed
    for graph in _graphs_in(listed):
        yield from graph.node


def _inner_names(node: Any) -> list[str]:
    """What the graphs inside a node take from outside."""
    names: list[str] = []
    for graph in _graphs_in([node]):
        own = {t.name for t in graph.initializer} | {i.name for i in graph.input}
        own |= {out for n in graph.node for out in n.output}
        names += [name for n in graph.node for name in n.input if name not in own]
        names += [o.name for o in graph.output if o.name not in own]
    return names


def _leaves(location: str) -> bool:
    """Whether a relative path would lead out of its folder, on any system."""
    windows, posix = PureWindowsPath(location), PurePosixPath(location)
    return bool(windows.drive or windows.root or posix.is_absolute() or ".." in windows.parts or ".." in posix.parts)


def _whole(attribute: Any) -> int:
    return math.prod(int(n) for n in attribute.ints)
