"""The service: answers gRPC, leads tables, follows operations to their end."""
