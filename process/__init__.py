"""What every process needs, whatever its part is: event loop, forks, garbage collection, systemd, logs, TLS,
secrets, HTTP for probes and metrics, tasks that go on whatever fails, and other processes for calls that may
hang. Nothing here knows etcd, tables or operations.
"""
