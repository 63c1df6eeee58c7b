"""Checking the rules of a table: the rows of a job, findings, the gate before publishing."""
