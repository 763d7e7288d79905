"""`myna jobs`: the queue, each waiting job with its reason."""

from typing import Annotated

import msgspec
import typer

from myna.control import codec
from myna.control.cli import output
from myna.control.cli.convert import report
from myna.control.cli.follow import ENDED, failure, follow
from myna.control.cli.options import Json, connect
from myna.control.contract import JobInfo, JobRef, JobsList, JobsReply, Message
from myna.control.errors import MynaError

app = typer.Typer(help="Show and steer the queue of jobs.", add_completion=False, rich_markup_mode=None)
Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="As `myna jobs list` shows them.")]
States = Annotated[
    list[str] | None, typer.Option("--state", metavar="STATE", help="Only these; may be given several times.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10000, help="At most so many, the newest.")]


@app.callback(invoke_without_command=True)
def default(context: typer.Context, as_json: Json = False) -> None:
    """Show and steer the queue of jobs; without a command, list it."""
    if context.invoked_subcommand is None:
        _list((), 200, as_json)


@app.command("list")
def list_(state: States = None, limit: Limit = 200, as_json: Json = False) -> None:
    """List jobs, newest last."""
    _list(tuple(state or ()), limit, as_json)


def _list(states: tuple[str, ...], limit: int, as_json: bool) -> None:
    request = codec.validate(JobsList, {"states": list(states), "limit": limit}, what="command line")
    with connect() as client:
        reply = client.call("jobs.list", request, JobsReply)
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("id", "kind", "state", "progress", "voice", "input", "output", "why"),
        [
            (
                job.id, job.kind, job.state,
                None if job.progress is None else f"{job.progress:.0%}",
                job.voice, job.input, job.output, _reason(job),
            )
            for job in reply.jobs
        ],
        "no jobs",
    )  # fmt: skip
    if reply.total > len(reply.jobs):
        output.note(f"{len(reply.jobs)} of {reply.total} shown; --limit shows more")


def _reason(job: JobInfo) -> str:
    if job.state == "failed":
        return str((job.error or {}).get("message", ""))
    if job.reason is None:
        return ""
    return job.reason + (f" ({job.frees})" if job.frees else "")


@app.command()
def show(id_: Annotated[str, typer.Argument(metavar="ID", help="As listed.")], as_json: Json = False) -> None:
    """Show all about one job."""
    with connect() as client:
        job = client.call("jobs.show", _ref(id_), JobInfo)
    if as_json:
        output.print_json(job)
        return
    shown = msgspec.to_builtins(job)
    for name in ("error", "result"):
        details = shown.pop(name)
        shown |= {f"{name} {key}": value for key, value in (details or {}).items()}
    output.pairs(list(shown.items()))


@app.command()
def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="As listed.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that have not ended.")] = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs, waiting or running."""
    if bool(ids) == all_:
        raise MynaError("bad_request", "Name jobs, or say --all.")
    _steer("jobs.cancel", _open() if all_ else list(ids or ()), as_json)


@app.command()
def retry(ids: Ids, as_json: Json = False) -> None:
    """Try jobs again; what was finished of them is kept."""
    _steer("jobs.retry", ids, as_json)


@app.command("run-now")
def run_now(ids: Ids, as_json: Json = False) -> None:
    """Run jobs although a live session uses the device; it may suffer."""
    _steer("jobs.run_now", ids, as_json)


@app.command()
def watch(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="By default all that have not ended.")] = None,
    as_json: Json = False,
) -> None:
    """Follow jobs to their end; exit code 1 if one did not succeed."""
    followed = list(ids) if ids else _open()
    with connect() as client:
        for each in ids or ():
            client.call("jobs.show", _ref(each), JobInfo)
        try:
            jobs = follow(client, followed, quiet=as_json)
        except KeyboardInterrupt:
            raise MynaError("interrupted", "Interrupted; the jobs go on.", ids=followed) from None
    failed = failure(jobs)
    if as_json and failed is None:
        output.print_json({"jobs": jobs})
    elif not as_json:
        report(jobs)
        if not jobs:
            output.line("no job is waiting or running")
    if failed is not None:
        raise failed


def _steer(method: str, ids: list[str], as_json: bool) -> None:
    """Send each id; all are tried, then the first error is raised."""
    done: list[JobInfo] = []
    first: MynaError | None = None
    with connect() as client:
        for each in ids:
            try:
                done.append(client.call(method, _ref(each), JobInfo))
            except MynaError as error:
                if len(ids) == 1 or error.code in ("unreachable", "timed_out"):
                    raise
                if not as_json:
                    output.note(f"{each}: {error.message}")
                first = first or error
    if first is not None:
        first.facts |= {"done": done}
    if as_json and first is None:
        output.print_json({"jobs": done})
    elif not as_json:
        for job in done:
            output.line(f"{job.id}  {job.state}" + (f"  {_reason(job)}" if _reason(job) else ""))
    if first is not None:
        raise first


def _open() -> list[str]:
    """Ids of all jobs that have not ended."""
    states: tuple[str, ...] = ("queued", "waiting", "running", "interrupted")
    request: Message = codec.validate(JobsList, {"states": list(states), "limit": 10000})
    with connect() as client:
        return [job.id for job in client.call("jobs.list", request, JobsReply).jobs if job.state not in ENDED]


def _ref(id_: str) -> JobRef:
    return codec.validate(JobRef, {"id": id_}, what="command line")
