"""`myna convert`: recordings into another voice, through the daemon's queue."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from myna.control import codec
from myna.control.cli import output, sources, values
from myna.control.cli.follow import failure, follow, why
from myna.control.cli.options import Json, Pairs, connect
from myna.control.client import Client
from myna.control.contract import MAX_MESSAGE_BYTES, JobInfo, JobRef, JobSpec, JobsSubmit, JobsSubmitted
from myna.control.errors import MynaError

CHUNK_JOBS = 500
BUSY_TRIES = 20


def convert(
    inputs: Annotated[list[str], typer.Argument(metavar="IN…", help="Files, folders, globs.")],
    out: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="A folder, or a file for one.")],
    voice: Annotated[str, typer.Option("--voice", metavar="V", help="Which voice.")] = "formant",
    pitch: Annotated[float | None, typer.Option("--pitch", help="Semitones.")] = None,
    formant: Annotated[float | None, typer.Option("--formant", help="Semitones.")] = None,
    f0_method: Annotated[str | None, typer.Option("--f0-method", metavar="M", help="Pitch tracker.")] = None,
    index_rate: Annotated[float | None, typer.Option("--index-rate", help="0 to 1.")] = None,
    protect: Annotated[float | None, typer.Option("--protect", help="0 to 0.5.")] = None,
    rms_mix: Annotated[float | None, typer.Option("--rms-mix", help="0 to 1.")] = None,
    speaker_id: Annotated[int | None, typer.Option("--speaker-id", help="Of a voice with several.")] = None,
    settings: Pairs = None,
    exists: Annotated[
        str, typer.Option("--exists", metavar="skip|overwrite|rename|fail", help="If a result is there.")
    ] = "fail",
    file_format: Annotated[
        str, typer.Option("--format", metavar="auto|wav|flac|mp3|ogg", help="auto: as the input.")
    ] = "auto",
    preview_s: Annotated[float | None, typer.Option("--preview", metavar="S", help="Only the first seconds.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until all have ended, or not.")] = True,
    cancel_on_interrupt: Annotated[
        bool, typer.Option("--cancel-on-interrupt", help="Ctrl-C cancels; otherwise the jobs go on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Convert recordings; the tree below a folder is mirrored. Ctrl-C leaves the jobs running (exit code 130)."""
    parameters = values.parameters(
        settings or (),
        {
            "pitch": pitch, "formant": formant, "f0_method": f0_method, "index_rate": index_rate,
            "protect": protect, "rms_mix": rms_mix, "speaker_id": speaker_id,
        },
    )  # fmt: skip
    run = secrets.token_hex(8)
    template = {
        "kind": "convert" if preview_s is None else "preview",
        "voice": voice,
        "parameters": parameters,
        "exists": exists,
        "format": file_format,
        "seconds": preview_s,
    }
    codec.validate(JobSpec, {**template, "output": out}, what="command line")
    jobs = [
        codec.validate(
            JobSpec,
            # The key makes a second submit of the same chunk, after a lost answer, harmless.
            {**template, "input": str(item.source), "output": str(item.target), "key": f"{run}-{number}"},
            what="command line",
        )
        for number, item in enumerate(sources.plan(inputs, out, file_format))
    ]
    with connect() as client:
        ids = submit(client, jobs)
        if not wait:
            if as_json:
                output.print_json({"ids": ids})
            else:
                output.line(f"{len(ids)} jobs submitted; `myna jobs watch` follows them")
            return
        _finish(client, ids, as_json, cancel_on_interrupt)


def submit(client: Client, jobs: Sequence[JobSpec]) -> list[str]:
    """Submit in chunks that fit a message; a full queue is asked again when it says so."""
    ids: list[str] = []
    for chunk in chunks(jobs):
        reply = _submit_chunk(client, JobsSubmit(jobs=tuple(chunk)))
        ids.extend(reply.ids)
        for warning in reply.warnings:
            output.note(warning)
    return ids


def chunks(jobs: Sequence[JobSpec]) -> Iterator[list[JobSpec]]:
    """Cut a long list so that each part fits a message."""
    part: list[JobSpec] = []
    size = 0
    for job in jobs:
        bytes_ = len(msgspec.msgpack.encode(job))
        if part and (len(part) == CHUNK_JOBS or size + bytes_ > MAX_MESSAGE_BYTES * 3 // 4):
            yield part
            part, size = [], 0
        part.append(job)
        size += bytes_
    if part:
        yield part


def _submit_chunk(client: Client, request: JobsSubmit) -> JobsSubmitted:
    for tries_left in reversed(range(BUSY_TRIES)):
        try:
            return client.call("jobs.submit", request, JobsSubmitted)
        except MynaError as error:
            wait_s = error.facts.get("retry_after_s")
            if error.code != "busy" or not isinstance(wait_s, int | float) or not tries_left:
                raise
            output.note(f"the queue is full; trying again in {wait_s:.0f} s")
            time.sleep(min(max(float(wait_s), 0.1), 300.0))
    raise AssertionError("the last try returns or raises")


def _finish(client: Client, ids: list[str], as_json: bool, cancel: bool) -> None:
    try:
        jobs = follow(client, ids, quiet=as_json)
    except KeyboardInterrupt:
        if cancel:
            count = _cancel(client, ids)
            message = f"Interrupted; {count} jobs were cancelled."
        else:
            message = "Interrupted; the jobs go on. `myna jobs watch` follows them, `myna jobs cancel` ends them."
        raise MynaError("interrupted", message, ids=ids) from None
    failed = failure(jobs)
    if as_json and failed is None:
        output.print_json({"jobs": jobs})
    elif not as_json:
        report(jobs)
    if failed is not None:
        raise failed


def report(jobs: Sequence[JobInfo]) -> None:
    """Where the results are, and what did not succeed."""
    for job in jobs:
        if job.state == "done":
            output.line(job.output)
    for job in jobs:
        if job.state != "done":
            output.note(f"{job.state}: {job.input or job.id}: {why(job)}")


def _cancel(client: Client, ids: Sequence[str]) -> int:
    count = 0
    for each in ids:
        try:
            count += client.call("jobs.cancel", JobRef(id=each), JobInfo).state != "done"
        except MynaError as error:
            if error.code not in ("refused", "not_found"):  # it had ended
                raise
    return count
