"""The names that a verifier knows are those of what the workers use."""

from app.domain import noise_generators
from tests.support.insecure_noise import InsecureNoise
from workers.noise.generators import SecureNoise


def test_the_services_own_generator_is_known_and_the_tests_own_is_not() -> None:
    name = SecureNoise().name
    assert name == noise_generators.SECURE
    assert name.partition(", ")[2] == noise_generators.ON_DEVICE.partition(", ")[2]
    assert {name, noise_generators.ON_DEVICE} == noise_generators.KNOWN
    assert InsecureNoise.name not in noise_generators.KNOWN
