"""OpenDSR 2.0: an adapter over the subject requests' service."""

from fastapi import APIRouter

from app.opendsr import discovery, endpoints

router = APIRouter()
router.include_router(discovery.router)
router.include_router(endpoints.router)
