"""What runs inside a task: its jobs, one after the other, and its session with the ledger.

From outside: nothing. Imports the room ``host``.
"""
