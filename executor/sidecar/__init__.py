"""The sidecar of a worker host, the client that tasks use, and the protocol between the two."""
