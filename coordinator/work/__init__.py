"""Running code that may hang: fair slots for each table, threads, and processes that can be ended."""
