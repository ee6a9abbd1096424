"""Download file names of a version."""


def weights_filename(model: str, number: int) -> str:
    """Return the name of a version's weights."""
    return f"{model}-v{number}.safetensors"


def certificate_filename(model: str, number: int) -> str:
    """Return the name of a version's certificate bundle."""
    return f"{model}-v{number}.certificate.json"


def signature_filename(model: str, number: int) -> str:
    """Return the name of a version's model signature."""
    return f"{model}-v{number}.sig"
