"""What concerns a table as a whole: its audit trail, its published indexes, and dropping it."""
