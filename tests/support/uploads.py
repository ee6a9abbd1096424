"""Uploads read in this very process: what the reading process does, where a test can see it."""

from app.domain.schema import TableSchema
from app.registry.datasets.uploads import Upload, checked_parts, joined


def parse_upload(content: bytes, schema: TableSchema, max_bytes: int = 1 << 30) -> Upload:
    """Read and check a Parquet file."""
    return joined(checked_parts(content, schema, max_bytes=max_bytes), schema)
