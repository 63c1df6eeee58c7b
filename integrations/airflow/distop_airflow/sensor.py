"""The sensor: a task that waits for a watermark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from distop.errors import DistopError
from distop_airflow.hook import DistopHook
from distop_airflow.operator import failure
from distop_airflow.trigger import WatermarkTrigger, reached


class DistopWatermarkSensor(BaseSensorOperator):
    """Waits until a source of a table was ingested up to a point; the watermark's value is the task's result.

    An error that may pass, such as that of coordinators which are away, does not end the wait: ``timeout``
    does.

    Parameters
    ----------
    table, source, partition:
        As ``distop watermark list TABLE`` shows them. Templates.
    at_least:
        Wait until the watermark is at this value or beyond it, in the order of watermarks: offset 10 is after
        9. Empty: until it exists.
    deferrable:
        Wait in the triggerer instead of a worker. ``poke_interval`` and ``timeout`` hold there, too.
    """

    template_fields = ("table", "source", "partition", "at_least")

    def __init__(
        self,
        *,
        table: str,
        source: str,
        partition: str,
        at_least: str = "",
        deferrable: bool = True,
        distop_conn_id: str = DistopHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table, self.source, self.partition, self.at_least = table, source, partition, at_least
        self.deferrable, self.distop_conn_id = deferrable, distop_conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once. Where no coordinator answers, it is not there yet."""
        try:
            with DistopHook(self.distop_conn_id).get_conn() as client:
                marks = client.table(self.table).watermarks(self.source)
        except DistopError as error:
            if not error.retryable:
                raise failure(error.fields()) from None
            self.log.warning("%s: looking again in %s s", error, self.poke_interval)
            return PokeReturnValue(False)
        value = reached(marks, self.source, self.partition, self.at_least)
        return PokeReturnValue(value is not None, value)

    def execute(self, context: Context) -> Any:
        """Read the watermark once; if it has not got there, wait in the triggerer or in this worker."""
        if not self.deferrable:
            return super().execute(context)
        if not (poked := self.poke(context)):
            asked = (self.table, self.source, self.partition, self.at_least)
            trigger = WatermarkTrigger(self.distop_conn_id, *asked, every_s=float(self.poke_interval))
            self.defer(
                trigger=trigger, timeout=timedelta(seconds=self.timeout), method_name="execute_complete"
            )
        return poked.xcom_value

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """The watermark's value."""
        if (error := event.get("error")) is not None:
            raise failure(error)
        return str(event["value"])
