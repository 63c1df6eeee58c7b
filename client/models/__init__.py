"""What the client returns: operations, tables, batches, members, findings; as plain dataclasses."""
