"""Processes: starting, watching and stopping them, and what they are denied."""
