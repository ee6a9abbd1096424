"""HTTP: one router and its schemas per resource; no rules of its own."""
