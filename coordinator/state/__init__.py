"""What a coordinator knows of operations: counts of their jobs, the next action,
and who waits for their end.

Decisions here are pure: no I/O, no clock of their own.
"""
