"""Operation types for tests; coordinators are given them by name, as in ``DISTOP_OPERATIONS``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distop.errors import Exhausted, InvalidArgument, PermanentStepError, PreconditionFailed
from distop.metastore.records.operation import Effect, OperationArg, WatermarkMove
from distop.operations.api import OperationView, Plan, PlanRequest, Scope
from support.types.work_types import Given, await_file


class PerObject(Given):
    """One operation per object."""

    type = "per_object"
    scope = Scope.PER_OBJECT


class Friend(Given):
    """May run at the same time as ``friendly``."""

    type = "friend"
    compatible_types = frozenset({"friendly"})


class Friendly(Given):
    """May run at the same time as ``friend``."""

    type = "friendly"
    compatible_types = frozenset({"friend", "noop", "hooked_friend"})


class Reading(Given):
    """A type of a user's that only reads."""

    type = "reading"
    effect = Effect.READS


class Appending(Given):
    """A type of a user's that only appends."""

    type = "appending"
    effect = Effect.APPENDS


class Replacing(Given):
    """A type of a user's that says nothing of what it does, and so may replace the table."""

    type = "replacing"


class Slow(Given):
    """``plan`` waits until the file ``argument.until`` is there."""

    type = "slow"

    def plan(self, request: PlanRequest) -> Plan:
        await_file(Path(request.argument["until"]))
        return Plan(argument={}, partition_count=0)


class Clumsy(Given):
    """``plan`` raises something that is no error of distop."""

    type = "clumsy"

    def plan(self, request: PlanRequest) -> Plan:
        raise ZeroDivisionError("a defect of the operation type")


class Hooked(Given):
    """``before_publish`` writes a line into the file ``argument.log``: its token.

    Then it raises as often as ``argument.raises`` says, ``argument.said`` times with a file name that is no
    text, or waits for the file ``argument.until``, or refuses for good with a text of ``argument.refuses``
    characters, or finds a limit (``argument.exhausts``), or can never pass (``argument.impossible``).

    ``after_failure`` writes its token and the code of the error into the same file, and raises as often as
    ``argument.abortRaises`` says.
    """

    type = "hooked"

    def before_publish(self, operation: OperationView) -> None:
        argument = operation.arg.argument
        log = Path(argument["log"])
        with log.open("a") as file:
            file.write(f"{operation.token} {os.getpid()} {','.join(sorted(operation.jobs)) or '-'}\n")
        if len(log.read_text().splitlines()) <= argument.get("raises", 0):
            raise RuntimeError("not yet" + os.fsdecode(b"\xff") * argument.get("said", 0))
        if "until" in argument:
            await_file(Path(argument["until"]))
        if "refuses" in argument:
            raise PreconditionFailed("x" * argument["refuses"])
        if argument.get("exhausts"):
            raise Exhausted("no more")
        if argument.get("impossible"):
            raise PermanentStepError("never")

    def after_failure(self, operation: OperationView) -> None:
        log = Path(operation.arg.argument["log"])
        before = len(log.read_text().splitlines()) if log.exists() else 0
        with log.open("a") as file:
            file.write(f"{operation.token} {operation.error.code if operation.error else '-'}\n")
        if before < operation.arg.argument.get("abortRaises", 0):
            raise RuntimeError("not yet")


class Undescribed(Given):
    """Has nothing to publish; ``describe_job`` refuses (``argument.refuses``), or raises;
    ``facts`` raises."""

    type = "undescribed"

    def describe_job(self, operation: OperationArg, partition: str) -> str:
        if operation.argument.get("refuses"):
            raise InvalidArgument("no name")
        raise RuntimeError("no name")

    def facts(self, operation: OperationView) -> dict[str, Any]:
        raise RuntimeError("no facts")


class Sweeping(Given):
    """``cleanup`` writes a line into the file ``argument.log``: its token, the attempts that count,
    the code of the error. Then it raises as often as ``argument.raises`` says."""

    type = "sweeping"

    def cleanup(self, operation: OperationView) -> None:
        log = Path(operation.arg.argument["log"])
        code = operation.error.code if operation.error else "-"
        with log.open("a") as file:
            file.write(f"{operation.token} {','.join(sorted(operation.attempts)) or '-'} {code}\n")
        if len(log.read_text().splitlines()) <= operation.arg.argument.get("raises", 0):
            raise RuntimeError("not yet")


class HookedFriend(Hooked):
    """May run at the same time as ``friendly``."""

    type = "hooked_friend"
    compatible_types = frozenset({"friendly"})


class Letters(Given):
    """Appends letters to a string, which is kept as a watermark: only its finish writes it, and only once.

    Several apply together. ``plan`` refuses a letter ``!``, ``before_publish`` a letter ``?``; a letter
    ``+`` makes a job that somebody has to do.
    """

    type = "letters"

    def plan(self, request: PlanRequest) -> Plan:
        if "!" in request.argument["letters"]:
            raise InvalidArgument("no letter: !")
        letters = request.argument["letters"]
        before = request.watermarks.get("letters", {}).get("string")
        move = WatermarkMove(before=before, after=(before or "") + letters)
        return Plan(
            argument=dict(request.argument),
            partition_count=letters.count("+"),
            watermarks={"letters": {"string": move}},
        )

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
        return {"letters": first["letters"] + second["letters"]}

    def before_publish(self, operation: OperationView) -> None:
        if "?" in operation.arg.argument["letters"]:
            raise PreconditionFailed("no letter: ?")


class Seer(Given):
    """``plan`` keeps what it was shown of the table."""

    type = "seer"

    def plan(self, request: PlanRequest) -> Plan:
        marks = {source: dict(partitions) for source, partitions in request.watermarks.items()}
        shown = {"watermarks": marks, "said": dict(request.argument)}
        if request.argument.get("refuse"):
            raise PreconditionFailed("it does not want to")
        return Plan(argument=shown, partitions=list(request.partitions or ["0"]))


class Tally(Given):
    """Counts itself in a watermark that all share. ``plan`` writes what it has found into the file
    ``argument.log``, then waits for the file ``argument.until``."""

    type = "tally"

    def plan(self, request: PlanRequest) -> Plan:
        argument = dict(request.argument)
        before = request.watermarks.get("tally", {}).get("count")
        if "log" in argument:
            with Path(argument["log"]).open("a") as file:
                file.write(f"{before or 0}\n")
        if "until" in argument:
            await_file(Path(argument["until"]))
        move = WatermarkMove(before=before, after=str(int(before or 0) + 1))
        return Plan(argument=argument, watermarks={"tally": {"count": move}})


class Onlooker(Given):
    """``plan`` records the active operations that it was shown. May run at the same time as ``noop``."""

    type = "onlooker"
    effect = Effect.READS
    sees_active = True

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(
            argument={"active": [str(operation.id) for operation in request.active]}, partition_count=1
        )


PROBES = tuple(
    f"{__name__}:{name}"
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Given) and kind is not Given
)
