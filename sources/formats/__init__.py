"""File formats of sources: finding files, reading raw rows, and turning them into typed columns."""
