"""The metrics of a coordinator, and its Prometheus registry."""
