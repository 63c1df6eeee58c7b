"""Every metric that a process of distop serves."""

from prometheus_client.core import Metric

from support.repository import reference


async def families() -> list[Metric]:
    """Of coordinators, executors and sidecars that have done nothing yet."""
    served = await reference()["families"]()
    return [family for of in served.values() for family in of]
