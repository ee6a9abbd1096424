import pytest

from app.accounting import catalogue
from app.domain.errors import ParameterError
from tests.app.accounting.test_catalogue import PARAMETERS, module_of

NOISES = {"noise_std", "noise_scale", "noise_multiplier"}


@pytest.mark.parametrize("name", catalogue.PUBLISHED)
@pytest.mark.parametrize("target", [{"epsilon": 0.0, "delta": 1e-5}, {"epsilon": 0.5, "delta": 1}])
def test_a_target_out_of_its_range_is_refused_by_name(name, target):
    setting = {key: value for key, value in PARAMETERS[name].items() if key not in NOISES}
    refused = "epsilon" if target["epsilon"] == 0 else "delta"
    with pytest.raises(ParameterError) as caught:
        module_of(name).calibrate(**{**setting, **target})
    assert caught.value.name == refused


@pytest.mark.parametrize("name", catalogue.PUBLISHED)
def test_the_noise_is_asked_for_by_account_alone(name):
    (noise,) = NOISES & set(PARAMETERS[name])
    setting = {key: value for key, value in PARAMETERS[name].items() if key != noise}
    with pytest.raises(ParameterError) as caught:
        catalogue.account(name, setting)
    assert caught.value.name == noise
    with pytest.raises(TypeError, match=noise):
        module_of(name).calibrate(**{**setting, "epsilon": 0.5, "delta": 1e-5, noise: 1.0})
