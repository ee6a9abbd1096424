"""What the rest stands on: settings, logs, database, processes, embedded servers."""
