"""The sidecar of a worker host, the client that tasks use, and the protocol between the two.

From outside: ``server``, the sidecar as a process. Imports the rooms ``ledger``, ``task`` and ``host``.
"""
