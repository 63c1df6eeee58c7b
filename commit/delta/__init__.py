"""Publishing into Delta tables."""
