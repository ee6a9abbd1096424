"""OpenDSR 2.0: a façade over the subject requests' service, for tools that speak it."""

from app.api.opendsr.endpoints import router

__all__ = ["router"]
