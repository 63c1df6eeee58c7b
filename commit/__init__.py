"""Commit steps: their contract, the sequence they form, and its execution (verify, execute, verify).

The hook that calls user code is here; steps on tables and files are in ``lake``, with their format.
"""

from distop.commit.contract import ExternalStep, StepPlan, TransactionalStep

__all__ = ["ExternalStep", "StepPlan", "TransactionalStep"]
