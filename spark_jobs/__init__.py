"""The operations that come with distop."""
