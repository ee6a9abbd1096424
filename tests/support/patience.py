"""How long tests wait for what must happen, on a machine however slow or busy."""

PATIENCE_S = 600.0
