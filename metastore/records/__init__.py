"""Contents of etcd: the names of keys (``keyspace``), and the typed records that are their values.

Imports nothing of the other rooms; everything else in distop may use it.
"""
