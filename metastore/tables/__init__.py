"""What concerns a table as a whole: its audit trail, its schedules, its published indexes, the claim to its
location, and dropping it."""
