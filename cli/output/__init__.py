"""What commands print: for people, as JSON, progress bars, logs, and exit codes."""
