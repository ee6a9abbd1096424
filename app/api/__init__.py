"""HTTP: one router with its schemas per resource; no business rules."""
