"""The gRPC services and their server."""
