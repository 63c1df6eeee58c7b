"""Starting an operation: checking the request, and planning it with the code of its type."""
