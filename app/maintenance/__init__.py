"""What operators run to check, search and reconcile what is stored."""
