"""``make truth``: each value through each way into a table, read back by each reader. See docs/truth.md."""
