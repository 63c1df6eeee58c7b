"""How long leases of services live in tests, in seconds."""

TTL_S = 2
"""Of a process that the test kills: the shortest that there is."""

LEASE_S = 10
"""Of a service in the test's own process, where nobody dies: a busy machine may hold that up for longer than
the shortest lease lives."""
