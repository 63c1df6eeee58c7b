"""The operator: an operation of distop as a task."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from distop.client import Client, OperationHandle
from distop.errors import AlreadyIngested, Cancelled, DistopError, InvalidArgument
from distop_airflow.hook import DistopHook
from distop_airflow.trigger import ENDED_BY_AIRFLOW, OperationTrigger, outcome_of

if TYPE_CHECKING:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

LONGEST_NAME = 512
"""Bytes of a run's name."""


def run_of(ti: RuntimeTaskInstance) -> str:
    """The name of the run that all tries of a task share: of its DAG, its run and its map index."""
    mapped = ti.map_index is not None and ti.map_index >= 0
    # Ids of DAGs and tasks have dots and underscores, also as their first letter, but neither '/' nor '['.
    name = f"airflow/{ti.dag_id}/{ti.task_id}{f'[{ti.map_index}]' if mapped else ''}/{ti.run_id}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    return f"{name.encode()[: LONGEST_NAME - 65].decode(errors='ignore')}.{sha256(name.encode()).hexdigest()}"


def failure(error: Mapping[str, Any]) -> AirflowException:
    """The exception for an error as JSON: Airflow tries the task again only where that may help."""
    kind = AirflowException if error["retryable"] else AirflowFailException
    hint = f" ({error['hint']})" if error["hint"] else ""
    return kind(f"{error['code']}: {error['message']}{hint}")


class DistopLink(BaseOperatorLink):
    """The operation's page."""

    name = "distop"

    @property
    def xcom_key(self) -> str:
        """The XCom with the address."""
        return "distop_page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address, in the process of the task; Airflow keeps it as an XCom."""
        return str(getattr(operator, "page", ""))


class DistopOperator(BaseOperator):
    """Runs an operation of distop, once for all tries of the task; its facts are the task's result.

    A try that was killed leaves the operation running, and the next try finds it. If the operation has failed
    or was cancelled, the next try starts another one. A task that a user kills, marks or clears while it
    waits cancels it.

    Parameters
    ----------
    table, type, argument:
        The operation: ``"flights"``, ``"ingest"``, ``{"paths": ["/data/{{ ds }}"]}``. Templates.
    options:
        Of the start, such as ``{"deadline_s": 3600, "queue": True}``: ``distop.client.StartOptions``.
    rerun:
        A task that was cleared after its operation had succeeded runs it anew, in place of the rows of that
        one; for an ingest that appends or overwrites. Otherwise the earlier operation is its result.
    if_new:
        Succeed, without facts, if another run has ingested the source already.
    deferrable:
        Wait in the triggerer instead of a worker.
    outlets:
        Assets, whose events get the operation and its facts as ``extra``.

    Raises
    ------
    AirflowFailException
        It failed for a reason that does not pass by itself; Airflow does not try the task again.
    AirflowException
        It failed for a reason that may pass.
    """

    template_fields = ("table", "type", "argument", "options")
    template_fields_renderers: ClassVar = {"argument": "json", "options": "json"}
    operator_extra_links = (DistopLink(),)
    ui_color = "#dcebe4"

    def __init__(
        self,
        *,
        table: str,
        type: str = "ingest",
        argument: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        rerun: bool = False,
        if_new: bool = False,
        deferrable: bool = True,
        distop_conn_id: str = DistopHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table, self.type = table, type
        self.argument, self.options = dict(argument or {}), dict(options or {})
        self.rerun, self.if_new, self.deferrable = rerun, if_new, deferrable
        self.distop_conn_id = distop_conn_id
        self.page = ""
        self._hook = DistopHook(distop_conn_id)
        self._operation = ""
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Start the operation, or find it, and wait for its end."""
        try:
            with self._hook.get_conn() as client:
                handle = self._start(client, context)
                self._follow(context, handle.name)
                operation = handle.started
                if self._killed:  # while it was being started
                    operation = handle.cancel(ENDED_BY_AIRFLOW)
                if not operation.done and not self.deferrable:
                    operation = handle.wait()
        except AlreadyIngested as error:
            if not self.if_new:
                raise failure(error.fields()) from None
            self.log.info("%s", error)
            return {}
        except DistopError as error:
            raise failure(error.fields()) from None
        if not operation.done:
            trigger = OperationTrigger(self.distop_conn_id, operation.name)
            self.defer(trigger=trigger, timeout=self.execution_timeout, method_name="execute_complete")
        return self.execute_complete(context, outcome_of(operation))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """What the task comes to, from the end of its operation."""
        self._follow(context, event["operation"])
        if (error := event.get("error")) is not None:
            cancelled = error["code"] == Cancelled.code and ENDED_BY_AIRFLOW in error["message"]
            if cancelled and not self._killed:
                # The kill was meant for an earlier try: this one is a retry, or was cleared.
                return self.execute(context)
            raise failure(error)
        facts: dict[str, Any] = event["facts"]
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = {"operation": self._operation, **facts}
        return facts

    def _start(self, client: Client, context: Context) -> OperationHandle:
        options: Any = self.options
        if taken := {"run", "again", "once"} & options.keys():
            raise InvalidArgument(f"the operator itself sets {', '.join(sorted(taken))}", hint="see rerun")

        def start(**how: Any) -> OperationHandle:
            return client.start(
                self.table, self.type, self.argument, **options, run=run_of(context["ti"]), **how
            )

        handle = start()
        return start(again=True) if self._is_rerun(context, handle) else handle

    def _is_rerun(self, context: Context, handle: OperationHandle) -> bool:
        """Whether the operation is that of before the task was cleared, and not of an earlier try since."""
        ti: Any = context["ti"]
        if not self.rerun or ti.max_tries <= self.retries:  # a clear adds tries
            return False
        # The first try after a clear writes down what it has found.
        store, key = context["task_state_store"], f"distop.before.{ti.max_tries}"
        if (before := store.get(key)) is None:
            before = handle.name if handle.started.found else ""
            store.set(key, before)
        return before == handle.name

    def _follow(self, context: Context, operation: str) -> None:
        """Let users of the task, and its kill, find the operation."""
        self.page = self._hook.page_of(operation)
        self._operation = operation  # which a kill cancels from now on: by a connection that was fetched
        context["ti"].xcom_push("operation", operation)
        self.log.info("operation %s of run %s %s", operation, run_of(context["ti"]), self.page)

    def on_kill(self) -> None:
        """Cancel the operation: Airflow ends this process."""
        self._killed = True
        if self._operation:
            with self._hook.get_conn() as client:
                client.operation(self._operation).cancel(ENDED_BY_AIRFLOW)
