"""Examples of every command, for its help."""

import re

_PATH = re.compile(
    r"(?:^| )expunge "
    r"((?:(?:api-key|backbone|callback|dataset|log|model|run|signing-key|storage) )?\S+)"
)
_TEXT = """\
expunge init
EXPUNGE_DATABASE_URL=… EXPUNGE_MIGRATION_URL=… expunge init # servers of your own
expunge up
EXPUNGE_DATA_DIR=/srv/expunge EXPUNGE_PORT=9000 expunge up
expunge serve
EXPUNGE_HOST=0.0.0.0 expunge serve
expunge worker
CUDA_VISIBLE_DEVICES=1 expunge worker --no-dispatcher
expunge dispatcher
expunge demo
expunge forget digits --subject person-17 --wait
expunge forget digits --record record-3 --record record-4 --external-id ticket-4711
expunge forget digits --subject person-17 --receipt receipt.json
expunge status fr_0123456789abcdef --wait
expunge requests
expunge requests --state failed --model digits-mlp
expunge retry fr_0123456789abcdef
expunge cancel fr_0123456789abcdef
expunge certificates fr_0123456789abcdef --out proofs
expunge certificates fr_0123456789abcdef --since kept-in-march --out proofs
expunge download digits-mlp --out release
expunge download digits-mlp --trusted trusted-keys.json --out release
expunge erase-check person-17 --dataset digits
echo person-17 | expunge erase-check - --dataset digits
expunge verify release/digits-mlp-v2.certificate.json --weights release/digits-mlp-v2.safetensors \
--trusted trusted-keys.json
expunge verify proof.json --weights model.safetensors --trusted trusted-keys.json --receipt \
receipt.json
expunge verify proof.json --weights model.safetensors --trusted trusted-keys.json --witness \
witness.example.org+f1bbdc7a+BDoUGmYkuApo4R1g6fS4sWXSCtJgCJ0zCE4AgR9QXcbs
expunge predict release/digits-mlp-v2.safetensors --input digits.npz --out scores.parquet
expunge predict model.safetensors --certificate proof.json --trusted trusted-keys.json --input \
rows.csv --decimal , --out scores.parquet
expunge plan --epsilon 1 --delta 1e-5
expunge plan --epsilon 1 --delta 1e-5 --budget-epochs 5 --records 50000
expunge plan --model digits-mlp --json
expunge account --mechanism gradient_clipping --param initial_clip=20 --param gradient_clip=10 \
--param learning_rate=0.01 --param weight_decay=50 --param noise_std=0.25679 --param steps=11 \
--delta 1e-5
expunge dataset push digits digits.npz
expunge dataset push churn churn.csv --subject-id customer --drop signup
expunge dataset push churn churn-march.csv
expunge dataset push churn churn-corrected.csv --replace
expunge dataset push open-digits open-digits.npz --public
expunge dataset import members s3://exports/members/2026-01.parquet --wait
expunge dataset import members 's3://exports/members/2026-*.parquet'
expunge dataset imports members
expunge dataset imports members imp_0123456789abcdef --wait
expunge dataset cancel-import members imp_0123456789abcdef
expunge dataset retry-import members imp_0123456789abcdef --wait
expunge dataset columns members.csv --record-id id --subject-id person
expunge dataset columns members.csv --record-id id --write members.json
expunge dataset create members --columns members.json
expunge dataset show digits
expunge dataset list
expunge dataset archive digits
expunge dataset delete digits
expunge backbone define examples/backbone.json
expunge backbone upload random-features random-features.safetensors
expunge backbone add pictures --factory expunge.backbones:efficientnet_lite0 --shape 32,32,3 \
--option size=128 --layer _blocks.10:2x2 --layer _avg_pooling
expunge backbone add resnet --factory expunge.backbones:torchvision --option network=resnet18 \
--shape 3,64,64 --weights resnet18.pth --source 'torchvision, ImageNet'
expunge backbone show pictures
expunge backbone list
expunge model check my_models:build --shape 8,8 --classes 10 --option width=48
expunge model check my_models:text --shape 64 --classes 2 --vocabulary 5000
expunge backbone archive random-features
expunge backbone delete random-features
expunge model create examples/model.json --wait
expunge model create churn --dataset churn --target churned --data churn.csv --dry-run
expunge model create churn --dataset churn --target churned --data churn.csv --missing age=45 \
--bounds age=18:98 --accept-values --wait
expunge model create net --dataset digits --target label --classes 10 --bounds features=0:16 \
--shape features=8,8 --architecture my_models:build
expunge model upload digits-net weights.safetensors --wait
expunge model upload digits-net last.ckpt --key state_dict
expunge model show digits-mlp
expunge model show digits-mlp --wait
expunge model list
expunge model versions digits-mlp
expunge model versions digits-mlp --state certified
expunge model retrain digits-mlp --wait
expunge model refill digits-mlp --wait
expunge model archive digits-mlp
expunge model targets digits-mlp
expunge model publish digits-mlp registry
expunge model unpublish digits-mlp registry
expunge model delete digits-mlp
expunge model export release/digits-mlp-v2.safetensors --format onnx --out digits.onnx
expunge model policy digits-mlp policy.json
expunge model recompute digits-ridge
expunge run list
expunge run list --state failed --model digits-mlp
expunge run show run_0123456789abcdef
expunge run cancel run_0123456789abcdef
expunge run retry run_0123456789abcdef
expunge api-key create privacy-desk --scope forget:write --scope forget:read
expunge api-key create contractor --scope models:read --expires-in 90d
expunge api-key list
expunge api-key revoke key_0123456789abcdef
expunge callback list
expunge callback list --state dead
expunge callback redeliver cbv_0123456789abcdef
expunge callback secret
expunge callback secret --rotate
expunge audit
expunge audit --caller operator --limit 10
expunge reconcile
expunge reconcile --apply
expunge storage check
expunge storage rewrap-keys --from directory
expunge storage rewrap-keys --from kms:alias/expunge
expunge log checkpoint > kept-in-march
expunge log fsck
expunge log fsck --consistent-with kept-in-march
expunge signing-key rotate
expunge signing-key rotate --compromised-since 2026-03-01T00:00:00Z
expunge signing-key list
"""


def _by_command() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for example in _TEXT.splitlines():
        (path,) = _PATH.findall(example)
        found[path] = (*found.get(path, ()), example)
    return found


EXAMPLES = _by_command()
"""The examples of each command, by its path."""


def epilog(path: str) -> str | None:
    """Return the end of a command's help: its examples, a paragraph each."""
    examples = EXAMPLES.get(path)
    return None if examples is None else "\n\n".join(("Examples:", *examples))
