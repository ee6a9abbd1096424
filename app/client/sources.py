"""The client's calls about what models are made from: datasets and backbones."""

from collections.abc import Mapping
from typing import Any

from app.client.connection import Connection, Json, at


class Sources(Connection):
    """Defines, fills, shows and archives datasets and backbones."""

    def define_dataset(
        self,
        name: str,
        columns: Mapping[str, str],
        *,
        record_id: str,
        subject_id: str | None = None,
        public: bool = False,
    ) -> Json:
        """Define a dataset; the same definition again changes nothing."""
        body = {
            "name": name,
            "columns": dict(columns),
            "record_id": record_id,
            "subject_id": subject_id,
            "public": public,
        }
        return self._object("POST", "/v1/datasets", json=body)

    def dataset(self, name: str) -> Json:
        """Return a dataset and its counts."""
        return self._object("GET", at("datasets", name))

    def datasets(self) -> list[Json]:
        """Return all datasets, by name."""
        return self._list("/v1/datasets")

    def archive_dataset(self, name: str) -> Json:
        """Shred a dataset's records for good."""
        return self._object("POST", at("datasets", name, "archive"))

    def delete_dataset(self, name: str) -> None:
        """Delete a dataset that never held a record."""
        self._answer("DELETE", at("datasets", name))

    def push_records(self, name: str, parquet: bytes, *, replace: bool = False) -> Json:
        """Add the new records of a Parquet file's content; changed ones ``replace`` the stored."""
        options = {"replace": True} if replace else None
        return self._object("PUT", at("datasets", name, "records"), content=parquet, params=options)

    def import_records(self, name: str, url: str) -> Json:
        """Have the service read Parquet files by reference; see ``wait_for_import``."""
        return self._object("POST", at("datasets", name, "imports"), json={"url": url})

    def imports(self, name: str) -> list[Json]:
        """Return a dataset's imports, newest first."""
        return self._list(at("datasets", name, "imports"))

    def import_of(self, name: str, import_id: str) -> Json:
        """Return an import and how far it is."""
        return self._object("GET", at("datasets", name, "imports", import_id))

    def cancel_import(self, name: str, import_id: str) -> Json:
        """Cancel an import; what it has added stays."""
        return self._object("POST", at("datasets", name, "imports", import_id, "cancel"))

    def retry_import(self, name: str, import_id: str) -> Json:
        """Let an import go on that failed or was cancelled."""
        return self._object("POST", at("datasets", name, "imports", import_id, "retry"))

    def define_backbone(self, definition: Mapping[str, Any]) -> Json:
        """Define a public backbone; see ``POST /v1/backbones``."""
        return self._object("POST", "/v1/backbones", json=dict(definition))

    def upload_backbone(self, name: str, safetensors: bytes) -> Json:
        """Give a backbone its weights, once."""
        return self._object("PUT", at("backbones", name, "weights"), content=safetensors)

    def backbone(self, name: str) -> Json:
        """Return a backbone."""
        return self._object("GET", at("backbones", name))

    def backbones(self) -> list[Json]:
        """Return all backbones, by name."""
        return self._list("/v1/backbones")

    def archive_backbone(self, name: str) -> Json:
        """Shred a backbone's weights for good."""
        return self._object("POST", at("backbones", name, "archive"))

    def delete_backbone(self, name: str) -> None:
        """Delete a backbone that no certificate names."""
        self._answer("DELETE", at("backbones", name))
