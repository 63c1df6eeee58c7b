"""Backups of etcd, and repair of the tables after a restore.

For operators with etcd's credentials: no coordinator may run meanwhile. The command line uses it.
"""
