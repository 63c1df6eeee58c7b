"""distop's gRPC API: ``distop.proto``, the code generated from it, and JSON in its text fields."""
