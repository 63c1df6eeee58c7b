"""A worker process's connection to its host's sidecar, which it finds, or starts.

One client per process, kept for later tasks. It outlives sidecars: when one vanishes during a task another is
found or started, claims are moved, and everything unanswered is sent again, marks with a flag that they are
repetitions. The task only sees a pause. Between tasks the client rests, and the next task connects.

However many tasks look for a sidecar at the same time, exactly one is started.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from distop.errors import CorruptRecord, DistopError, Unavailable
from distop.executor.host.sidecar_folder import SidecarFolder, is_locked, take_lock
from distop.executor.sidecar import wire
from distop.executor.task.session import ANSWER_TIMEOUT_S, Ownership, TaskSession
from distop.metastore.etcd.config import PASSWORD, PASSWORD_FILE, USER
from distop.metastore.operations.jobs import WON, Mark, Outcome, Verdict

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""Longest start of a sidecar."""

WAIT_S = 10.0
"""How long a process without etcd's password waits for another one to start a sidecar."""

SEND_TIMEOUT_S = 30
"""How long to wait for a sidecar that does not accept a connection, or does not read."""

MAX_CRASHES = 3
"""Back-off after a sidecar could not start."""

_MAX_LOG_BYTES = 4 << 20
_PAUSE_S = 0.02

# A child is remembered so that it can be reaped; it outlives this process.
_children: list[subprocess.Popen[bytes]] = []

FRAME_MARKS = 100
"""Marks that justify a frame of their own while others are unanswered."""

KEPT_RUNS = 8
"""Runs that stay attached to the sidecar between the tasks of a worker."""

_SHORT_LIVED_S = 0.1
_CHUNK = 1 << 18
_clients_lock = threading.Lock()


class SidecarUnavailable(Unavailable):
    """The sidecar of this host does not answer, and none can be started."""

    code = "SIDECAR_UNAVAILABLE"
    default_hint = "look at the file 'log' in the sidecar's folder"


def dial(folder: SidecarFolder, environment: Mapping[str, str]) -> socket.socket:
    """A connection to the sidecar of this host, which is started if there is none.

    Raises
    ------
    SidecarUnavailable
        None could be started within :data:`START_TIMEOUT_S`, or by others within :data:`WAIT_S`.
    """
    starts, crashes = _has_password(environment), 0
    deadline = time.monotonic() + (START_TIMEOUT_S if starts else WAIT_S)
    lock: int | None = None
    child: subprocess.Popen[bytes] | None = None
    try:
        while True:
            folder.prepare()  # each time: see sweep_folders
            if (connection := _connect(folder)) is not None:
                break
            if not starts:
                pass  # a process with the password starts one
            elif is_locked(folder.service_lock):
                pass  # `distop sidecar` is about to serve
            elif lock is None:
                lock = take_lock(folder.starting_lock)
            elif child is None or child.poll() is not None:
                # One that ends normally gave way to another one, or its predecessor is about to end.
                crashes += child is not None and child.returncode != 0
                if crashes < MAX_CRASHES:
                    child = start_sidecar(folder, environment)
            if time.monotonic() > deadline and not starts:
                raise _no_password(folder)
            if time.monotonic() > deadline or crashes >= MAX_CRASHES:
                raise SidecarUnavailable(
                    f"no sidecar answers at {folder.socket}", hint=f"look at its log, {folder.log}"
                )
            time.sleep(_PAUSE_S)
    finally:
        if lock is not None:
            os.close(lock)
    return connection


def start_sidecar(folder: SidecarFolder, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a sidecar that outlives this process and its process group, and ends when idle.

    Raises
    ------
    SidecarUnavailable
        It would have no password for etcd, and would block one that has.
    """
    given = {**os.environ, **environment}
    if not _has_password(environment):
        raise _no_password(folder)
    _children[:] = [child for child in _children if child.poll() is None]
    with Path(folder.log).open("ab") as output:
        if output.tell() > _MAX_LOG_BYTES:
            output.truncate(0)
        child = subprocess.Popen(
            [_python(), "-m", "distop.executor.sidecar.server", "--folder", str(folder.folder)],
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _children.append(child)
    log.info("sidecar_starting", extra={"sidecar_pid": child.pid})
    return child


def _python() -> str:
    """This interpreter, by a path that stays when the task's folder goes: a container of YARN has links to
    what it was sent, and is removed with them while the sidecar serves the tasks of others. The program
    itself may be a link, by which it knows its virtual environment."""
    folder, name = os.path.split(sys.executable)
    return os.path.join(os.path.realpath(folder), name)


def _has_password(environment: Mapping[str, str]) -> bool:
    """Whether a sidecar that is started here could authenticate."""
    given = {**os.environ, **environment}
    return not given.get(USER) or bool(given.get(PASSWORD) or given.get(PASSWORD_FILE))


def _no_password(folder: SidecarFolder) -> SidecarUnavailable:
    return SidecarUnavailable(
        f"no sidecar answers at {folder.socket}, and there is no password to start one",
        hint=f"run `distop sidecar` on this host, or set {PASSWORD_FILE} for its workers",
    )


def _connect(folder: SidecarFolder) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # For connecting and sending only: a task may receive nothing for hours.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_TIMEOUT_S, 0))
    try:
        connection.connect(str(folder.socket))
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


@dataclass
class KnownRun:
    """A run on this connection."""

    number: int
    operation: str
    token: int
    claims: bool
    sessions: list[TaskSession[Any]] = field(default_factory=list)
    over: str = ""
    held: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Present claims: partition -> attempt, create revision."""
    given_up: bool = False
    """A request had no answer in time. What it brings late, such as a claim, is no task's."""

    def attach(self) -> wire.Attach:
        return wire.Attach(self.number, self.operation, self.token, self.claims)


@dataclass
class PendingRequest:
    """A request that the sidecar has not answered yet: sent again to the next sidecar."""

    message: wire.Request
    answer: wire.Answer | DistopError | None = None
    arrived: threading.Event = field(default_factory=threading.Event)

    def settle(self, answer: wire.Answer | DistopError) -> None:
        self.answer = answer
        self.arrived.set()


@dataclass(slots=True)
class Sent:
    """A mark that the sidecar has not answered yet: sent again to the next sidecar, as a repetition."""

    session: TaskSession[Any]
    number: int
    """The session's number for it."""
    run: KnownRun
    mark: Mark


class SidecarClient:
    """The client of all tasks of a process; a :class:`~distop.executor.task.session.Port`.

    Parameters
    ----------
    environment:
        How a newly started sidecar reaches etcd, as of ``EtcdConfig.to_env``.
    """

    def __init__(self, folder: SidecarFolder, environment: Mapping[str, str]) -> None:
        self.folder, self._environment = folder, dict(environment)
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._runs: dict[tuple[str, int], KnownRun] = {}
        self._asked: dict[int, PendingRequest] = {}
        self._unanswered: dict[int, Sent] = {}
        self._outbox: list[int] = []
        """Numbers of unsent marks."""
        self._socket: socket.socket | None = None
        self._reading = False
        """Whether a thread reads, or makes the next connection. Without one there are no runs, and the next
        task connects."""
        self._connect()

    def close(self) -> None:
        """End the connection, and all tasks that use it. The sidecar releases what was claimed through it."""
        self._fail_all(SidecarUnavailable("the connection to the sidecar was closed"))

    def _connect(self) -> None:
        """Connect to the sidecar of this host, or start one. Raises :class:`SidecarUnavailable`."""
        self._socket = dial(self.folder, self._environment)
        self._frames = wire.Frames(wire.FromSidecar)
        self._owned_until = math.inf
        self._reading = True
        reader = threading.Thread(target=self._read, args=(self._socket,), name="distop-sidecar", daemon=True)
        reader.start()

    # -- Port: called by tasks' threads --------------------------------------------------------------

    def attach(self, session: TaskSession[Any]) -> None:
        with self._lock:
            if not self._reading:
                self._connect()
            run = self._runs.get((session.operation, session.token))
            if run is None:
                run = KnownRun(next(self._numbers), session.operation, session.token, session.claims)
                self._runs[run.operation, run.token] = run
                self._send(run.attach())
            run.sessions.append(session)
            session.owned_until = self._owned_until
            over = run.over
        if over:
            session.end(over)

    def detach(self, session: TaskSession[Any]) -> None:
        with self._lock:
            run = self._runs.get((session.operation, session.token))
            if run is not None and session in run.sessions:
                run.sessions.remove(session)
            self._send_marks()
            # They are abandoned: the next sidecar would take marks of a run that was left for garbage.
            for number in [number for number, sent in self._unanswered.items() if sent.session is session]:
                del self._unanswered[number]
            self._outbox = [number for number in self._outbox if number in self._unanswered]
            unused = [key for key, run in self._runs.items() if not run.sessions]
            # Runs that are over are useless; of the rest the next task most likely uses the youngest. The
            # sidecar releases the claims of a run that is left: those of a task that has failed are among
            # them, and would keep the next one out.
            surplus = len(unused) - KEPT_RUNS
            for index, key in enumerate(unused):
                run = self._runs[key]
                if run.over or run.held or run.given_up or index < surplus:
                    del self._runs[key]
                    self._send(wire.Detach(run.number))

    def submit(self, session: TaskSession[Any], number: int, mark: Mark) -> None:
        with self._lock:
            run = self._run_of(session)
            mine, all_answered = next(self._numbers), len(self._unanswered) == len(self._outbox)
            self._unanswered[mine] = Sent(session, number, run, mark)
            self._outbox.append(mine)
            # Like etcd's group commit: marks that arrive while a frame is unanswered are sent together.
            if all_answered or len(self._outbox) >= FRAME_MARKS:
                self._send_marks()

    def flush(self) -> None:
        with self._lock:
            self._send_marks()

    def claim(self, session: TaskSession[Any], partition: str, attempt: str) -> Ownership | Verdict:
        while not session.over:
            answer = self._ask(
                session, lambda number, run: wire.ClaimRequest(number, run, partition, attempt)
            )
            match answer:
                case wire.ClaimAnswer():
                    return Ownership(answer.claim, answer.checkpoint)
                case wire.Refused():
                    return Verdict(answer.outcome, answer.reason)
        return Verdict(Outcome.GONE, session.over)

    def release(self, session: TaskSession[Any], partition: str, claim: int) -> None:
        with self._lock:
            self._run_of(session).held.pop(partition, None)
        self._ask(session, lambda number, run: wire.ReleaseRequest(number, run, partition, claim))

    def save(self, session: TaskSession[Any], partition: str, claim: int, value: bytes) -> Verdict | None:
        answer = self._ask(
            session, lambda number, run: wire.SaveRequest(number, run, partition, claim, value)
        )
        return Verdict(answer.outcome, answer.reason) if isinstance(answer, wire.Refused) else None

    def count_try(self, session: TaskSession[Any], partition: str, attempt: str, error: str) -> None:
        self._ask(session, lambda number, run: wire.AttemptFailed(number, run, partition, attempt, error))

    def _run_of(self, session: TaskSession[Any]) -> KnownRun:
        """Under the lock: the client may fail at any time, and forgets all runs then."""
        run = self._runs.get((session.operation, session.token))
        if run is None or session not in run.sessions:
            raise SidecarUnavailable("the connection to the sidecar was lost")
        return run

    def _ask(
        self,
        session: TaskSession[Any],
        make: Callable[[int, int], wire.Request],
    ) -> wire.Answer:
        """The answer to a message, made of its number and that of the session's run."""
        with self._lock:
            number, run = next(self._numbers), self._run_of(session)
            asked = self._asked[number] = PendingRequest(make(number, run.number))
            self._send(asked.message)
        if not asked.arrived.wait(ANSWER_TIMEOUT_S):
            with self._lock:
                self._asked.pop(number, None)
                run.given_up = True
            raise SidecarUnavailable(f"the sidecar gave no answer for {ANSWER_TIMEOUT_S:g} s")
        if asked.answer is None or isinstance(asked.answer, DistopError):
            raise asked.answer or SidecarUnavailable()
        return asked.answer

    # -- sending, under the lock ---------------------------------------------------------------------

    def _send(self, message: wire.FromTask) -> None:
        """Send, or drop: everything important is stored here and is sent again on the next connection."""
        if self._socket is None:
            return
        try:
            self._socket.sendall(wire.frame(message))
        except OSError as error:
            log.info("sidecar_gone", extra={"error": str(error)})
            self._hang_up()

    def _send_marks(self) -> None:
        if self._socket is None:
            return
        marks: dict[int, list[tuple[int, Mark]]] = {}
        for number in self._outbox:
            sent = self._unanswered[number]
            marks.setdefault(sent.run.number, []).append((number, sent.mark))
        self._outbox.clear()
        for run, of_run in marks.items():
            self._send(wire.MarkGroup(run, of_run))

    def _hang_up(self) -> None:
        """Stop using this connection; the reader notices."""
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # -- the reader's thread -------------------------------------------------------------------------

    def _read(self, connection: socket.socket) -> None:
        try:
            while True:
                began = time.monotonic()
                with connection:
                    self._read_to_the_end(connection)
                if self._rests():
                    return
                if time.monotonic() - began < _SHORT_LIVED_S:
                    time.sleep(_SHORT_LIVED_S)
                connection = self._reconnect()
        except DistopError as error:
            self._fail_all(error, reading=False)
        except Exception as error:
            log.exception("sidecar_reader_failed")
            failure = SidecarUnavailable(f"reading from the sidecar failed: {error!r}")
            self._fail_all(failure, reading=False)

    def _read_to_the_end(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(_CHUNK):
                for message in self._frames.feed(data):
                    self._handle(message)
        except (OSError, CorruptRecord) as error:
            log.info("sidecar_gone", extra={"error": str(error)})
        with self._lock:
            self._hang_up()

    def _rests(self) -> bool:
        """Rest if there is no task; whether it does. A worker without one must not restart a sidecar that was
        ended, so the next task connects."""
        with self._lock:
            if any(run.sessions for run in self._runs.values()):
                return False
            self._forget()
            self._reading = False
            return True

    def _forget(self) -> None:
        """Nothing of this connection is sent on the next one."""
        self._runs, self._asked, self._unanswered, self._outbox = {}, {}, {}, []

    def _reconnect(self) -> socket.socket:
        """Another connection, with everything important sent again."""
        while True:
            connection = dial(self.folder, self._environment)
            try:
                self._take_up(connection)
            except (OSError, CorruptRecord) as error:
                log.info("sidecar_gone", extra={"error": str(error)})
                with self._lock:
                    self._hang_up()
                connection.close()
                time.sleep(_SHORT_LIVED_S)
            else:
                return connection

    def _take_up(self, connection: socket.socket) -> None:
        """Send a new sidecar all state. Until claims have moved to its lease nothing else may reach it: it
        would refuse the checkpoints of their jobs."""
        self._frames = wire.Frames(wire.FromSidecar)
        with self._lock:
            introduced = {run.number for run in self._runs.values()}
            first: list[wire.FromTask] = [run.attach() for run in self._runs.values()]
            moving = {}
            for run in self._runs.values():
                for partition, (attempt, claim) in run.held.items():
                    number = next(self._numbers)
                    moving[number] = (run, partition, claim)
                    first.append(wire.ClaimRequest(number, run.number, partition, attempt, claim))
        connection.settimeout(ANSWER_TIMEOUT_S)  # it may be halted, and its successor alive
        connection.sendall(b"".join(map(wire.frame, first)))
        while moving:
            data = connection.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the sidecar ended while claims moved to it")
            for message in self._frames.feed(data):
                numbers = message.numbers if isinstance(message, wire.RequestFailed) else [_number(message)]
                moved = moving.pop(numbers[0], None) if numbers else None
                if moved is None:
                    self._handle(message)
                elif isinstance(message, wire.ClaimAnswer):
                    self._renew(message.until)
                else:
                    self._lose_claim(*moved, "it could not be moved to another sidecar")
        connection.settimeout(None)
        with self._lock:
            self._socket = connection
            for run in self._runs.values():
                if run.number not in introduced:
                    self._send(run.attach())
            for left in introduced - {run.number for run in self._runs.values()}:
                self._send(wire.Detach(left))  # its last task has ended meanwhile; its claims have moved
            for asked in self._asked.values():
                self._send(asked.message)
            unsent = set(self._outbox)
            for number, sent in self._unanswered.items():
                if number not in unsent:
                    sent.mark = msgspec.structs.replace(sent.mark, repeated=True)
            self._outbox = list(self._unanswered)
            self._send_marks()

    def _handle(self, message: wire.FromSidecar) -> None:
        match message:
            case wire.Verdicts():
                self._notify_sessions(message.answers)
            case wire.Over():
                for run in self._numbered(message.run):
                    run.over = message.reason
                    run.held.clear()
                    for session in list(run.sessions):
                        session.end(message.reason)
            case wire.ClaimLost():
                for run in self._numbered(message.run):
                    self._lose_claim(run, message.partition, message.claim, message.reason)
            case wire.Renewed():
                self._renew(message.until)
            case wire.RequestFailed() if message.numbers:
                self._fail(message.numbers, wire.error_of(message))
            case wire.RequestFailed():
                self._fail_all(wire.error_of(message))
            case _:
                self._answer(message)

    def _answer(self, message: wire.Answer) -> None:
        with self._lock:
            asked = self._asked.pop(_number(message), None)
            if asked is None:
                return
            claim = asked.message
            if isinstance(message, wire.ClaimAnswer) and isinstance(claim, wire.ClaimRequest):
                # Before the task knows: if this connection breaks now, the claim must move with it.
                self._renew(message.until)
                for run in self._numbered(claim.run):
                    run.held[claim.partition] = (claim.attempt, message.claim)
        asked.settle(message)

    def _notify_sessions(self, answers: list[tuple[int, Outcome, str]]) -> None:
        by_session: dict[TaskSession[Any], list[tuple[int, Mark, Verdict]]] = {}
        with self._lock:
            for number, outcome, reason in answers:
                sent = self._unanswered.pop(number, None)
                if sent is not None:
                    if sent.mark.claim:
                        sent.run.held.pop(sent.mark.partition, None)
                    verdict = WON if outcome is Outcome.WON else Verdict(outcome, reason)
                    by_session.setdefault(sent.session, []).append((sent.number, sent.mark, verdict))
            if self._outbox:
                self._send_marks()
        for session, verdicts in by_session.items():
            session.answered(verdicts)

    def _renew(self, until: float) -> None:
        with self._lock:
            self._owned_until = until
            for run in self._runs.values():
                for session in run.sessions:
                    session.owned_until = until

    def _lose_claim(self, run: KnownRun, partition: str, claim: int, reason: str) -> None:
        with self._lock:
            if run.held.get(partition, ("", 0))[1] == claim:
                del run.held[partition]
            sessions = list(run.sessions)
        for session in sessions:
            session.claim_lost(None, partition, claim, reason)

    def _fail(self, numbers: list[int], error: DistopError) -> None:
        """Requests and marks that will not be answered."""
        with self._lock:
            asked = [self._asked.pop(number) for number in numbers if number in self._asked]
            lost = [self._unanswered.pop(number) for number in numbers if number in self._unanswered]
            gone = set(numbers)
            self._outbox = [number for number in self._outbox if number not in gone]
        for request in asked:
            request.settle(error)
        for sent in lost:
            sent.session.unanswered([sent.number], error)

    def _numbered(self, number: int) -> list[KnownRun]:
        with self._lock:
            return [run for run in self._runs.values() if run.number == number]

    def _fail_all(self, error: DistopError, *, reading: bool = True) -> None:
        """End the connection and all tasks that use it.

        ``reading``: the thread that reads goes on, and sees the end.
        """
        with self._lock:
            self._hang_up()
            asked = list(self._asked.values())
            sessions = [session for run in self._runs.values() for session in run.sessions]
            self._forget()
            self._reading = self._reading and reading
        for request in asked:
            request.settle(error)
        for session in sessions:
            session.fail(error)


def _number(message: wire.FromSidecar) -> int:
    return int(getattr(message, "number", 0))


_clients: dict[tuple[int, SidecarFolder], SidecarClient] = {}


def client_of_this_process(folder: SidecarFolder, environment: Mapping[str, str]) -> SidecarClient:
    """The client of this process, made on first use.

    Keyed by process id: Spark forks its workers, and a child cannot share a connection.
    """
    key = (os.getpid(), folder)
    with _clients_lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = SidecarClient(folder, environment)
        return client
