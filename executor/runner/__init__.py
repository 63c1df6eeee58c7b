"""The runner: takes operations, launches their jobs, and follows the jobs until all have ended.

From outside: :func:`run_hosted`, ``service`` (the executor as a process), ``options.RunnerOptions``. Imports
every other room of the executor.
"""

from distop.executor.runner.service import run_hosted

__all__ = ["run_hosted"]
