"""distop's gRPC API: ``distop.proto`` and the code generated from it, nothing else."""
