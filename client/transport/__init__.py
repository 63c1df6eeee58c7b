"""Calls that reach the service through any of its coordinators, and values to and from protobuf."""
