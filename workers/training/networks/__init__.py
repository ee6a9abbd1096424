"""Networks: how they are built, and their parameters, buffers and public base."""
