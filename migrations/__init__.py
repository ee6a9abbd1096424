"""Schema migrations, one concern a file; they never import the application's code."""
