"""OpenDSR 2.0: a façade over the subject requests' service, for tools that speak it."""

from fastapi import APIRouter

from app.api.opendsr import discovery, endpoints

router = APIRouter()
router.include_router(discovery.router)
router.include_router(endpoints.router)
