"""What tells a stream that the server took elsewhere from one that a user moved."""

from myna.daemon.audio.moved import Place, devices_of, moved, streams_of

INPUTS = """Sink Input #2
	Driver: protocol-native.c
	Client: 36
	Sink: 1
	Sample Specification: float32le 2ch 48000Hz
	Properties:
		media.name = "ALSA Playback"
		application.process.id = "32191"

Sink Input #7
	Driver: protocol-native.c
	Sink: 4
	Properties:
		application.process.id = "99"
"""
OUTPUTS = """Source Output #0
	Driver: module-remap-source.c
	Source: 0
	Properties:
		media.name = "Remapped Stream"

Source Output #4
	Driver: protocol-native.c
	Source: 2
	Properties:
		application.process.id = "32191"
"""
BEFORE = Place(
    {("sink-input", 2): 1, ("source-output", 4): 2}, {"sink-input": frozenset({0, 1}), "source-output": frozenset({2})}
)


def now(sink: int, sinks: set[int], source: int = 2, sources: frozenset[int] = frozenset({2})) -> Place:
    return Place(
        {("sink-input", 2): sink, ("source-output", 4): source},
        {"sink-input": frozenset(sinks), "source-output": sources},
    )


def test_only_a_processs_own_streams_are_read() -> None:
    assert streams_of(INPUTS, 32191) == {2: 1}
    assert streams_of(OUTPUTS, 32191) == {4: 2}
    assert streams_of(INPUTS, 5) == streams_of("", 32191) == {}


def test_devices_are_read() -> None:
    assert devices_of("0\tmic_cable\tmodule-null-sink.c\tfloat32le\tIDLE\n12\tout\tx\ty\tRUNNING\n") == {0, 12}
    assert devices_of("") == frozenset()


def test_taken_from_a_device_that_is_gone_is_a_loss() -> None:
    assert moved(BEFORE, now(0, {0}))
    assert moved(BEFORE, now(1, {0, 1}, source=3, sources=frozenset({3})))


def test_moved_by_a_user_or_not_at_all_is_none() -> None:
    assert not moved(BEFORE, BEFORE)
    assert not moved(BEFORE, now(0, {0, 1}))  # the old device is still there: somebody wanted it so
    assert not moved(BEFORE, Place({}, {"sink-input": frozenset(), "source-output": frozenset()}))  # it ended
