"""The update rules, one a file, named as their accountants."""
