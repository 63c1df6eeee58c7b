"""Applying the backlog of a table: which batch is next, those without an order, and their operations."""
