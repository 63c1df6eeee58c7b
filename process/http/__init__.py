"""Serving HTTP in any process of distop: bounded connections, TLS, and metrics for Prometheus."""
