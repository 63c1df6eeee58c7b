"""What a coordinator counts, and its Prometheus registry."""
