"""SQL of callers: rules that rows must keep, findings, the gate before publishing; restrictions of
queries."""
