"""Landing folders: batches that are dropped into a folder are published in order."""
