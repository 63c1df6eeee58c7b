"""Topics of Kafka as a source: arguments, offsets, planning, reading, and records into columns."""
