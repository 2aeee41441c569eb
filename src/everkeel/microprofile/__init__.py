"""MicroProfile Fault Tolerance 4.1 for Python: the standard's annotations, rules, configuration keys and metrics."""
