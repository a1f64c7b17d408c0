"""Answers from a recording: causes of latencies, remedies, what-if, diagnoses, comparisons, the debugger."""
