"""The backlog of a table: queued batches, and the decisions that change how it is applied."""
