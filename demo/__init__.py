"""The main job on real data: `make demo`."""
