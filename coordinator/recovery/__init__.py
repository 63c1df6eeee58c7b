"""Backups of etcd, and mending the tables after one was restored.

For those who hold etcd's credentials: no coordinator runs meanwhile. The command line uses it.
"""
