"""Access of one host's jobs to etcd, on one event loop: claims, the watch over runs, marks in groups.

From outside: nothing. Imports the room ``task``, whose sessions it serves.
"""
