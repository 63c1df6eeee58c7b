"""Rules that rows must keep: parsing, checking with SQL, findings, and the gate before publishing."""
