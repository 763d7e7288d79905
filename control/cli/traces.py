"""`myna traces`: the timings of the last jobs."""

from myna.control.cli import output
from myna.control.cli.options import Json, connect
from myna.control.contract import Empty, TracesReply


def traces(as_json: Json = False) -> None:
    """Show the timings of the last jobs; no text, name or path is in them."""
    with connect() as client:
        reply = client.call("traces", Empty(), TracesReply)
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("job", "kind", "outcome", "device", "engine", "queue s", "load s", "run s", "audio s", "segments", "tries"),
        [
            (
                each.job, each.kind, each.error_code or each.outcome, each.device, each.engine, each.queue_s,
                each.load_s, each.run_s, each.audio_s, each.segments, each.attempts,
            )
            for each in reply.traces
        ],
        "no job has ended yet",
    )  # fmt: skip
