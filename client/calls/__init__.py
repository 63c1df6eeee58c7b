"""The calls of the client, one module for each service, and following over broken streams.

The clients are composed of these. Imports the rooms ``models`` and ``transport``.
"""
