"""The tables of the first schema, a module for each part of the service."""
