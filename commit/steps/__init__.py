"""Commit steps: their contract, the sequence they form, and its execution (verify, execute, verify).

Steps on single files and the hook that calls user code are here; steps on tables are with their format.
"""

from distop.commit.steps.contract import ExternalStep, StepPlan, TransactionalStep

__all__ = ["ExternalStep", "StepPlan", "TransactionalStep"]
