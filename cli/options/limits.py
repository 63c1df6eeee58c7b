"""Options that limit what callers may ask of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.options.bundles import Bundle

if TYPE_CHECKING:
    from distop.coordinator.api.limits import Limits

PANEL = "How much callers may ask for"


@dataclass(frozen=True)
class LimitOptions:
    """A larger value is refused as BUSY."""

    caller_calls: Annotated[
        int, typer.Option(min=1, metavar="N", help="Concurrent calls of one caller.", rich_help_panel=PANEL)
    ] = 1_000
    caller_streams: Annotated[
        int, typer.Option(min=1, metavar="N", help="Open streams of one caller.", rich_help_panel=PANEL)
    ] = 2_000
    caller_starts: Annotated[
        float,
        typer.Option(
            min=0.01,
            metavar="N",
            help="Operations, previews, batches and tables that one caller may begin a second; twice as many "
            "at once.",
            rich_help_panel=PANEL,
        ),
    ] = 500.0
    all_calls: Annotated[
        int, typer.Option(min=1, metavar="N", help="Concurrent calls of all callers.", rich_help_panel=PANEL)
    ] = 4_000
    all_streams: Annotated[
        int, typer.Option(min=1, metavar="N", help="Open streams of all callers.", rich_help_panel=PANEL)
    ] = 8_000

    def limits(self) -> Limits:
        from distop.coordinator.api.limits import Limits

        return Limits(
            calls_each=self.caller_calls,
            calls=self.all_calls,
            streams_each=self.caller_streams,
            streams=self.all_streams,
            starts_per_s=self.caller_starts,
        )


CallerLimits = Annotated[LimitOptions, Bundle(LimitOptions)]
