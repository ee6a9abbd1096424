"""The input of runs: records, features and initial weights."""
