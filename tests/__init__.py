"""The tests; a package, so that another of this name among the installed ones is not found."""
