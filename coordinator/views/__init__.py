"""What callers see: operations, listings, updates, and why a table does not move."""
