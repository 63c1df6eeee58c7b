"""Applying the backlog of a table: which batch is next, and the operation that applies it."""
