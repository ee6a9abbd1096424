"""The client of the service that the settings name."""

from app.client.client import ExpungeClient
from app.domain.errors import ConfigurationError
from app.runtime.keyfiles import read_key_file
from app.runtime.settings import Settings


def configured_client() -> ExpungeClient:
    """Return a client with the configured URL and key, or those that ``expunge init`` wrote.

    Raises:
        ConfigurationError: the key is missing, or others may read it.
    """
    settings = Settings()
    url = settings.api_url or f"http://{settings.host}:{settings.port}"
    if settings.api_key is not None:
        key = settings.api_key.get_secret_value().strip()
    else:
        try:
            key = read_key_file(settings.admin_key_file).decode().strip()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}; for one on another machine, set EXPUNGE_API_URL and EXPUNGE_API_KEY"
            ) from error
    return ExpungeClient(url, key)
