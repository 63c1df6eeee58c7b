"""The calls of the client that are more than one request, grouped by what they concern."""
