"""Models, versions and publication."""
