"""The truth about jobs on disk: an sqlite database in write-ahead mode."""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from myna.control.contract import JobSpec, Trace
from myna.control.errors import MynaError

SCHEMA_VERSION = 1
TRACES_KEPT = 32
FINISHED_KEPT = 20_000
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LEARNED_WEIGHT_S = 3600.0  # older measurements weigh no more than this much audio

# `waiting` is not stored: it is what a queued job is called while something is in its way.
_SCHEMA = """
CREATE TABLE jobs (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    kind TEXT NOT NULL,
    voice TEXT NOT NULL,
    engine TEXT NOT NULL,
    input TEXT,
    output TEXT NOT NULL,
    spec BLOB NOT NULL,
    state TEXT NOT NULL,
    run_now INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    segments_done INTEGER NOT NULL DEFAULT 0,
    segments INTEGER,
    progress REAL,
    submitted_at REAL NOT NULL,
    queued_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    error BLOB,
    result BLOB
);
CREATE INDEX jobs_state ON jobs (state);
CREATE TABLE segments (
    job INTEGER NOT NULL REFERENCES jobs (n) ON DELETE CASCADE,
    segment INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    work_s REAL NOT NULL,
    PRIMARY KEY (job, segment)
) WITHOUT ROWID;
CREATE TABLE attempts (
    job INTEGER NOT NULL REFERENCES jobs (n) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    device TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    outcome TEXT,
    error BLOB,
    PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE TABLE learned (
    voice TEXT NOT NULL,
    device TEXT NOT NULL,
    audio_s REAL NOT NULL,
    work_s REAL NOT NULL,
    PRIMARY KEY (voice, device)
) WITHOUT ROWID;
CREATE TABLE traces (n INTEGER PRIMARY KEY AUTOINCREMENT, trace BLOB NOT NULL);
"""

_COLUMNS = (
    "n, kind, voice, engine, input, output, state, run_now, attempts, segments_done, segments, progress,"
    " submitted_at, queued_at, started_at, finished_at, error, result"
)


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One job as stored; the columns in order."""

    n: int
    kind: str
    voice: str
    engine: str
    input: str | None
    output: str
    state: str
    run_now: int
    attempts: int
    segments_done: int
    segments: int | None
    progress: float | None
    submitted_at: float
    queued_at: float
    started_at: float | None
    finished_at: float | None
    error: bytes | None
    result: bytes | None

    @property
    def id(self) -> str:
        """The job's name on the wire."""
        return job_id(self.n)


def job_id(n: int) -> str:
    """The name of a stored job."""
    return f"j{n}"


def job_number(job: str) -> int | None:
    """The number in a job's name; None if it is no such name."""
    digits = job[1:]
    if job[:1] != "j" or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        return None
    return int(digits) if job == job_id(int(digits)) else None


def number_of(job: str) -> int:
    """The number in a job's id. MynaError("not_found") if it is none."""
    number = job_number(job)
    if number is None:
        raise no_such_job(job)
    return number


def no_such_job(job: str) -> MynaError:
    """What is told of an id that no job has."""
    return MynaError("not_found", f"There is no job {job!r}. `myna jobs` lists them.", job=job)


P = ParamSpec("P")
R = TypeVar("R")


def _told(method: "Callable[Concatenate[Store, P], R]") -> "Callable[Concatenate[Store, P], R]":
    """Turn sqlite's errors into the published one."""

    def wrapped(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
            raise _unwritable(self.path, error) from error

    wrapped.__name__, wrapped.__doc__ = method.__name__, method.__doc__
    return wrapped


def _unwritable(path: Path, error: Exception) -> MynaError:
    text = f"The job store {path} can't be used: {error}. Free disk space or give the folder back its permissions."
    return MynaError("state_unwritable", text, path=str(path), detail=str(error))


def _set_aside(path: Path) -> Path:
    """Rename a database with what belongs to it; the first name that is free. OSError."""
    number = 1
    while (to := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")).exists():
        number += 1
    path.rename(to)
    for tail in ("-wal", "-shm"):
        if (beside := path.with_name(path.name + tail)).exists():
            beside.rename(to.with_name(to.name + tail))
    return to


class Store:
    """Jobs, their journal of segments, attempts, learned speeds and traces. Not thread-safe.

    Every method is one transaction: after a kill it happened wholly or not at all. What was submitted or came to
    an end is synced to the disk before the call returns.

    Raises MynaError("state_unwritable") wherever the disk is full or read-only.
    """

    def __init__(self, folder: Path) -> None:
        """Open it, or make it; one that is damaged is set aside for a new one: a live voice must not wait for it."""
        self.path = folder / "jobs.sqlite3"
        self.set_aside: Path | None = None  # where a damaged one lies now
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in DAMAGED:
                    raise
                self.set_aside = _set_aside(self.path)
                self._open()
        except (sqlite3.Error, OSError) as error:
            raise _unwritable(self.path, error) from error

    def _open(self) -> None:
        # Several threads use it, one at a time, under the owner's lock.
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=2.0)
        try:
            self._prepare()
        except BaseException:  # whatever it is, the file is not kept locked
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA foreign_keys=ON")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise MynaError(
                "state_unwritable",
                f"The job store {self.path} was written by a newer version. Update, or use another state folder.",
                path=str(self.path),
                version=version,
            )
        if version == 0:
            with self._transaction(durable=True):
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        else:
            # Fails now, not at the first job, where the folder was made read-only.
            with self._transaction():
                self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @contextmanager
    def _transaction(self, durable: bool = False) -> Iterator[None]:
        # NORMAL survives the death of any process; FULL that of the machine.
        if durable:
            self._db.execute("PRAGMA synchronous=FULL")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:  # whatever it is, nothing is half written
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        finally:
            if durable:
                self._db.execute("PRAGMA synchronous=NORMAL")

    # --- jobs --------------------------------------------------------------------------------------------

    @_told
    def submit(self, specs: Sequence[tuple[JobSpec, str]]) -> list[tuple[int, bool]]:
        """Take jobs (each with the name of its engine), all or none.

        Returns:
            For each its number, and whether it is new: a key that is known names the job it had.
        """
        now = time.time()
        taken: list[tuple[int, bool]] = []
        encoder = msgspec.msgpack.Encoder()
        with self._transaction(durable=True):
            for spec, engine in specs:
                if spec.key is not None:
                    known = self._db.execute("SELECT n FROM jobs WHERE key = ?", (spec.key,)).fetchone()
                    if known is not None:
                        taken.append((known[0], False))
                        continue
                cursor = self._db.execute(
                    "INSERT INTO jobs (key, kind, voice, engine, input, output, spec, state, submitted_at, queued_at)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?)",
                    (spec.key, spec.kind, spec.voice, engine, spec.input, spec.output, encoder.encode(spec), now, now),
                )
                assert cursor.lastrowid is not None
                taken.append((cursor.lastrowid, True))
        return taken

    @_told
    def row(self, n: int) -> Row | None:
        """One job."""
        found = self._db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE n = ?", (n,)).fetchone()
        return Row(*found) if found is not None else None

    @_told
    def spec(self, n: int) -> JobSpec:
        """What was submitted."""
        (blob,) = self._db.execute("SELECT spec FROM jobs WHERE n = ?", (n,)).fetchone()
        return msgspec.msgpack.decode(blob, type=JobSpec)

    @_told
    def rows(self, states: Sequence[str] = (), after: int = 0, limit: int = -1) -> list[Row]:
        """Jobs in the order of their submission: of some states (all if none is named), after a number.

        Without `after` the newest `limit` are given, else the first `limit` after it.
        """
        where, values = "n > ?", [after, *states]
        if states:
            where += f" AND state IN ({','.join('?' * len(states))})"
        order = "ASC" if after else "DESC"
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM jobs WHERE {where} ORDER BY n {order} LIMIT ?", [*values, limit]
        ).fetchall()
        if not after:
            rows.reverse()
        return [Row(*row) for row in rows]

    @_told
    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return dict(self._db.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state").fetchall())

    @_told
    def give_back(self) -> list[Row]:
        """After a start: what a dead daemon was running is queued again. Returns all that wait, in order."""
        now = time.time()
        with self._transaction():
            self._db.execute("UPDATE attempts SET outcome = 'interrupted', ended_at = ? WHERE outcome IS NULL", (now,))
            self._db.execute(
                "UPDATE jobs SET state = 'queued', queued_at = ? WHERE state IN ('running', 'interrupted')", (now,)
            )
        return self.rows(states=("queued",))

    @_told
    def set_run_now(self, n: int) -> None:
        """The user wants this job beside a live session."""
        with self._transaction():
            self._db.execute("UPDATE jobs SET run_now = 1 WHERE n = ?", (n,))

    @_told
    def begin(self, n: int, attempt: int, device: str) -> None:
        """An attempt starts."""
        now = time.time()
        with self._transaction():
            self._db.execute(
                "UPDATE jobs SET state = 'running', attempts = ?, started_at = ?, error = NULL WHERE n = ?",
                (attempt, now, n),
            )
            self._db.execute(
                "INSERT OR REPLACE INTO attempts (job, attempt, device, started_at) VALUES (?, ?, ?, ?)",
                (n, attempt, device, now),
            )

    @_told
    def journal(
        self, n: int, attempt: int, units: Iterable[tuple[int, float]], segments: int | None, progress: float
    ) -> None:
        """Segments are published: (index, seconds of work) each."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO segments (job, segment, attempt, work_s) VALUES (?, ?, ?, ?)",
                [(n, index, attempt, work_s) for index, work_s in units],
            )
            self._db.execute(
                "UPDATE jobs SET segments = ?, progress = ?,"
                " segments_done = (SELECT COUNT(*) FROM segments WHERE job = ?) WHERE n = ?",
                (segments, progress, n, n),
            )

    @_told
    def stand(self, n: int, attempt: int, segments: Iterable[int]) -> None:
        """Segments of earlier attempts hold: those that the journal missed are entered."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR IGNORE INTO segments (job, segment, attempt, work_s) VALUES (?, ?, ?, 0)",
                [(n, index, attempt) for index in segments],
            )
            self._db.execute(
                "UPDATE jobs SET segments_done = (SELECT COUNT(*) FROM segments WHERE job = ?) WHERE n = ?",
                (n, n),
            )

    @_told
    def segments(self, n: int) -> list[tuple[int, int, float]]:
        """The journal of a job: (index, attempt that made it, seconds of work)."""
        return self._db.execute(
            "SELECT segment, attempt, work_s FROM segments WHERE job = ? ORDER BY segment", (n,)
        ).fetchall()

    @_told
    def attempts(self, n: int) -> list[tuple[int, str | None, str]]:
        """The attempts of a job: (number, outcome, device)."""
        return self._db.execute(
            "SELECT attempt, outcome, device FROM attempts WHERE job = ? ORDER BY attempt", (n,)
        ).fetchall()

    @_told
    def requeue(self, n: int, attempt: int, outcome: str, error: dict[str, object] | None) -> None:
        """An attempt ended without ending its job. `outcome` is crashed or interrupted."""
        now = time.time()
        state = "interrupted" if outcome == "interrupted" else "queued"
        with self._transaction():
            self._end_attempt(n, attempt, outcome, error, now)
            self._db.execute("UPDATE jobs SET state = ?, queued_at = ? WHERE n = ?", (state, now, n))

    @_told
    def settle(
        self,
        n: int,
        attempt: int,
        state: str,
        *,
        error: dict[str, object] | None = None,
        result: dict[str, object] | None = None,
        trace: Trace | None = None,
    ) -> None:
        """A job came to its end: done, failed or cancelled."""
        now = time.time()
        with self._transaction(durable=True):
            self._end_attempt(n, attempt, state, error, now)
            self._db.execute(
                "UPDATE jobs SET state = ?, finished_at = ?, error = ?, result = ?,"
                " progress = CASE WHEN ? = 'done' THEN 1.0 ELSE progress END WHERE n = ?",
                (state, now, _blob(error), _blob(result), state, n),
            )
            if trace is not None:
                self._db.execute("INSERT INTO traces (trace) VALUES (?)", (msgspec.msgpack.encode(trace),))
                self._db.execute("DELETE FROM traces WHERE n <= (SELECT MAX(n) FROM traces) - ?", (TRACES_KEPT,))

    def _end_attempt(self, n: int, attempt: int, outcome: str, error: dict[str, object] | None, now: float) -> None:
        self._db.execute(
            "UPDATE attempts SET outcome = ?, error = ?, ended_at = ?"
            " WHERE job = ? AND attempt = ? AND outcome IS NULL",
            (outcome, _blob(error), now, n, attempt),
        )

    @_told
    def retry(self, n: int) -> None:
        """A failed or cancelled job waits again; what it had finished stays."""
        with self._transaction(durable=True):
            self._db.execute(
                "UPDATE jobs SET state = 'queued', queued_at = ?, error = NULL, result = NULL, finished_at = NULL,"
                " run_now = 0 WHERE n = ?",
                (time.time(), n),
            )

    @_told
    def prune(self, keep: int = FINISHED_KEPT) -> int:
        """Forget the oldest jobs that are at their end, beyond `keep`. Returns how many."""
        with self._transaction():
            return self._db.execute(
                "DELETE FROM jobs WHERE n IN (SELECT n FROM jobs WHERE state IN ('done', 'failed', 'cancelled')"
                " ORDER BY n DESC LIMIT -1 OFFSET ?)",
                (keep,),
            ).rowcount

    # --- what was learned --------------------------------------------------------------------------------

    @_told
    def learn(self, voice: str, device: str, audio_s: float, work_s: float) -> None:
        """Add a measurement of how fast a voice works on a device."""
        known = self._db.execute(
            "SELECT audio_s, work_s FROM learned WHERE voice = ? AND device = ?", (voice, device)
        ).fetchone()
        if known is not None:
            weight = min(1.0, LEARNED_WEIGHT_S / known[0]) if known[0] > 0 else 0.0
            audio_s, work_s = audio_s + known[0] * weight, work_s + known[1] * weight
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO learned (voice, device, audio_s, work_s) VALUES (?, ?, ?, ?)",
                (voice, device, audio_s, work_s),
            )

    @_told
    def realtime_factor(self, voice: str, device: str) -> float | None:
        """Work seconds per audio second, as measured; None before any measurement."""
        known = self._db.execute(
            "SELECT work_s / audio_s FROM learned WHERE voice = ? AND device = ? AND audio_s > 0", (voice, device)
        ).fetchone()
        return float(known[0]) if known is not None else None

    @_told
    def traces(self) -> tuple[Trace, ...]:
        """The last traces, oldest first."""
        rows = self._db.execute("SELECT trace FROM traces ORDER BY n").fetchall()
        return tuple(msgspec.msgpack.decode(blob, type=Trace) for (blob,) in rows)


def _blob(value: dict[str, object] | None) -> bytes | None:
    return msgspec.msgpack.encode(value) if value is not None else None


def decoded(blob: bytes | None) -> dict[str, Any] | None:
    """An error or result as stored."""
    return msgspec.msgpack.decode(blob) if blob is not None else None
