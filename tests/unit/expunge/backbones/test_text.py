"""Networks of the library transformers, without any weights but random ones."""

import pytest
import torch

from app.domain.architectures import FeatureLayer
from app.domain.errors import InvalidInputError
from expunge import backbones
from workers.training.networks.architectures import Layered

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}


def build(**options):
    pytest.importorskip("transformers", exc_type=Exception)
    torch.manual_seed(0)
    return backbones.transformers(classes=2, **options).eval()


@pytest.mark.slow
def test_tokens_that_fill_up_a_text_do_not_count():
    network = build(input_shape=(12,), network="bert", config=SMALL)
    tokens = torch.randint(1, 100, (3, 12))
    tokens[0, 5:] = 0
    layered = Layered(network, [FeatureLayer("encoder.layer.0"), FeatureLayer("encoder.layer.1")])
    with torch.no_grad():
        for features, size in ((network, 32), (layered, 64)):
            found = features(tokens)
            assert found.shape == (3, size)
            torch.testing.assert_close(features(tokens[:1, :5]), found[:1], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_configuration_names_no_code_and_no_kernels_elsewhere():
    elsewhere = {
        "auto_map": {"AutoModel": "someone/else--code.Network"},
        "attn_implementation": "someone/kernels",
        "_attn_implementation": "someone/kernels",
    }
    network = build(input_shape=(12,), network="bert", config=SMALL | elsewhere)
    assert type(network).__name__ == "BertModel"


@pytest.mark.slow
def test_images_are_read_too():
    config = SMALL | {"image_size": 32, "patch_size": 8}
    network = build(input_shape=(20, 20, 3), network="vit", config=config, pooling="first")
    assert network(torch.rand(2, 20, 20, 3)).shape == (2, 32)


def test_another_pooling_is_refused():
    with pytest.raises(InvalidInputError, match="mean or first"):
        backbones.transformers(input_shape=(4,), classes=2, network="bert", pooling="max")
