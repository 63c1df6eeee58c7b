"""What is read: files and their formats, topics of Kafka, and rows in quarantine. Needs no Spark."""
