"""What callers are shown: operations, listings, updates, and why a table does not move."""
