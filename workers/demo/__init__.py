"""The main job on real data, as `make demo` runs it."""
