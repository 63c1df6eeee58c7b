"""The pyiceberg catalog whose pointers live in etcd."""
