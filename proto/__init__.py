"""What passes between distop's processes: the gRPC API (``distop.proto``, the code generated from it, and
JSON in its text fields), and how HTTP is served (``http``)."""
