"""OpenDSR 2.0: an adapter over the subject requests' service."""

from fastapi import APIRouter

from app.opendsr.endpoints import public, signed

router = APIRouter()
router.include_router(public)
router.include_router(signed)
