"""What the jobs of one host need of etcd, on one event loop: claims, runs, and marks in groups."""
