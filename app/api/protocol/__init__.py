"""HTTP's own mechanics: what holds for every resource."""
