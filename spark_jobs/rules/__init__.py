"""SQL of callers: rules that rows must keep, findings, the gate before publishing; what a query may be."""
