"""What a coordinator knows of operations: their state from their keys, the next action, and waiting
callers.

Decisions here are pure: no I/O, no clock of their own.
"""
