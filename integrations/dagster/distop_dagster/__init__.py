"""Tables of distop as assets of Dagster."""

from distop_dagster.asset import distop_asset
from distop_dagster.resource import DistopResource

__all__ = ["DistopResource", "distop_asset"]
