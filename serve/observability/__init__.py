"""What is measured, and where it goes: metrics, traces, log lines."""
