"""The calls of the client, one module for each service, and following what goes on over broken streams.

The clients on top are put together from these. Imports the rooms ``models`` and ``transport``.
"""
