"""Turns codes or hidden states into samples, in calls that all streams share."""
