"""Launching the jobs of an operation: as tasks of Spark, or in threads of this process.

From outside: :data:`SETTINGS`, for a Spark session that a user's program makes. Spark's workers import this
package, so it loads nothing else; and modules import pyspark and pyarrow where they use them, since a program
without Spark has neither. Imports the rooms ``sidecar``, ``ledger``, ``task`` and ``host``.
"""

from distop.executor.launch.settings import SETTINGS

__all__ = ["SETTINGS"]
