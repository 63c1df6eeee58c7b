"""Reaches the service through any of its coordinators. Imports no other room."""
