"""Examples of every command, for its help."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": (
        "expunge init",
        "EXPUNGE_DATABASE_URL=… EXPUNGE_MIGRATION_URL=… expunge init # servers of your own",
    ),
    "up": ("expunge up", "EXPUNGE_DATA_DIR=/srv/expunge EXPUNGE_PORT=9000 expunge up"),
    "serve": ("expunge serve", "EXPUNGE_HOST=0.0.0.0 expunge serve"),
    "worker": ("expunge worker", "CUDA_VISIBLE_DEVICES=1 expunge worker --no-dispatcher"),
    "dispatcher": ("expunge dispatcher",),
    "demo": ("expunge demo",),
    "forget": (
        "expunge forget digits --subject person-17 --wait",
        "expunge forget digits --record record-3 --record record-4 --external-id ticket-4711",
        "expunge forget digits --subject person-17 --receipt receipt.json",
    ),
    "status": ("expunge status fr_0123456789abcdef --wait",),
    "requests": (
        "expunge requests",
        "expunge requests --state failed --model digits-mlp",
    ),
    "retry": ("expunge retry fr_0123456789abcdef",),
    "cancel": (
        "expunge cancel fr_0123456789abcdef",
        "expunge cancel fr_0123456789abcdef --restore",
    ),
    "certificates": (
        "expunge certificates fr_0123456789abcdef --out proofs",
        "expunge certificates fr_0123456789abcdef --since kept-in-march --out proofs",
    ),
    "download": (
        "expunge download digits-mlp --out release",
        "expunge download digits-mlp --trusted trusted-keys.json --out release",
    ),
    "erase-check": (
        "expunge erase-check person-17 --dataset digits",
        "echo person-17 | expunge erase-check - --dataset digits",
    ),
    "verify": (
        "expunge verify release/digits-mlp-v2.certificate.json "
        "--weights release/digits-mlp-v2.safetensors --trusted trusted-keys.json",
        "expunge verify proof.json --weights model.safetensors --trusted trusted-keys.json "
        "--receipt receipt.json",
        "expunge verify proof.json --weights model.safetensors --trusted trusted-keys.json "
        "--witness witness.example.org+f1bbdc7a+BDoUGmYkuApo4R1g6fS4sWXSCtJgCJ0zCE4AgR9QXcbs",
    ),
    "predict": (
        "expunge predict release/digits-mlp-v2.safetensors --input digits.npz --out scores.parquet",
        "expunge predict model.safetensors --certificate proof.json --trusted trusted-keys.json "
        "--input rows.csv --decimal , --out scores.parquet",
    ),
    "witness": (
        "expunge witness --name witness.example.org --trusted trusted-keys.json --state seen.json",
    ),
    "plan": (
        "expunge plan --epsilon 1 --delta 1e-5",
        "expunge plan --epsilon 1 --delta 1e-5 --budget-epochs 5 --records 50000",
        "expunge plan --model digits-mlp --json",
    ),
    "account": (
        "expunge account --mechanism gradient_clipping --param initial_clip=20 "
        "--param gradient_clip=10 --param learning_rate=0.01 --param weight_decay=50 "
        "--param noise_std=0.25679 --param steps=11 --delta 1e-5",
    ),
    "dataset push": (
        "expunge dataset push digits digits.npz --scale 0.0625",
        "expunge dataset push churn churn.csv --label churned --subject customer --drop signup "
        "--missing age=45 --accept-values",
        "expunge dataset push churn churn-march.csv",
        "expunge dataset push reviews reviews.npz --vocabulary 5000",
        "expunge dataset push open-digits open-digits.npz --public",
    ),
    "dataset import": (
        "expunge dataset import members s3://exports/members/2026-01.parquet --wait",
        "expunge dataset import members 's3://exports/members/2026-*.parquet'",
    ),
    "dataset imports": (
        "expunge dataset imports members",
        "expunge dataset imports members imp_0123456789abcdef --wait",
    ),
    "dataset cancel-import": ("expunge dataset cancel-import members imp_0123456789abcdef",),
    "dataset retry-import": ("expunge dataset retry-import members imp_0123456789abcdef --wait",),
    "dataset inspect": (
        "expunge dataset inspect churn.csv",
        "expunge dataset inspect churn.csv --label churned --write-mapping churn.json",
    ),
    "dataset columns": (
        "expunge dataset columns members.csv --record-id id --subject person",
        "expunge dataset columns members.csv --record-id id --write members.json",
    ),
    "dataset create": ("expunge dataset create members --columns members.json",),
    "dataset show": ("expunge dataset show digits",),
    "dataset list": ("expunge dataset list",),
    "dataset archive": ("expunge dataset archive digits",),
    "dataset delete": ("expunge dataset delete digits",),
    "backbone define": ("expunge backbone define examples/backbone.json",),
    "backbone upload": ("expunge backbone upload random-features random-features.safetensors",),
    "backbone add": (
        "expunge backbone add pictures --factory expunge.backbones:efficientnet_lite0 "
        "--shape 32,32,3 --option size=128 --layer _blocks.10:2x2 --layer _avg_pooling",
        "expunge backbone add resnet --factory expunge.backbones:torchvision --option "
        "network=resnet18 --shape 3,64,64 --weights resnet18.pth --source 'torchvision, ImageNet'",
    ),
    "backbone whiten": (
        "expunge backbone whiten random-features --dataset open-digits --wait",
        "expunge backbone whiten random-features --dataset open-digits --exponent 0.5 --as white",
    ),
    "backbone show": ("expunge backbone show pictures",),
    "backbone list": ("expunge backbone list",),
    "model check": (
        "expunge model check my_models:build --shape 8,8 --classes 10 --option width=48",
        "expunge model check my_models:text --shape 64 --classes 2 --vocabulary 5000",
    ),
    "backbone archive": ("expunge backbone archive random-features",),
    "backbone delete": ("expunge backbone delete random-features",),
    "model create": ("expunge model create examples/model.json --wait",),
    "model upload": (
        "expunge model upload digits-net weights.safetensors --wait",
        "expunge model upload digits-net last.ckpt --key state_dict",
    ),
    "model show": ("expunge model show digits-mlp", "expunge model show digits-mlp --wait"),
    "model list": ("expunge model list",),
    "model versions": (
        "expunge model versions digits-mlp",
        "expunge model versions digits-mlp --state certified",
    ),
    "model retrain": ("expunge model retrain digits-mlp --wait",),
    "model archive": ("expunge model archive digits-mlp",),
    "model targets": ("expunge model targets digits-mlp",),
    "model publish": ("expunge model publish digits-mlp registry",),
    "model unpublish": ("expunge model unpublish digits-mlp registry",),
    "model delete": ("expunge model delete digits-mlp",),
    "model export": (
        "expunge model export release/digits-mlp-v2.safetensors --format onnx --out digits.onnx",
    ),
    "model policy": ("expunge model policy digits-mlp policy.json",),
    "model recompute": ("expunge model recompute digits-ridge",),
    "run list": ("expunge run list", "expunge run list --state failed --model digits-mlp"),
    "run show": ("expunge run show run_0123456789abcdef",),
    "run cancel": ("expunge run cancel run_0123456789abcdef",),
    "run retry": ("expunge run retry run_0123456789abcdef",),
    "api-key create": (
        "expunge api-key create privacy-desk --scope forget:write --scope forget:read",
        "expunge api-key create contractor --scope models:read --expires-in 90d",
    ),
    "api-key list": ("expunge api-key list",),
    "api-key revoke": ("expunge api-key revoke key_0123456789abcdef",),
    "callback list": ("expunge callback list", "expunge callback list --state dead"),
    "callback redeliver": ("expunge callback redeliver cbv_0123456789abcdef",),
    "callback secret": ("expunge callback secret", "expunge callback secret --rotate"),
    "audit": ("expunge audit", "expunge audit --caller operator --limit 10"),
    "reconcile": ("expunge reconcile", "expunge reconcile --apply"),
    "storage check": ("expunge storage check",),
    "storage rewrap-keys": (
        "expunge storage rewrap-keys --from directory",
        "expunge storage rewrap-keys --from kms:alias/expunge",
    ),
    "log checkpoint": ("expunge log checkpoint > kept-in-march",),
    "log fsck": ("expunge log fsck", "expunge log fsck --consistent-with kept-in-march"),
    "signing-key rotate": (
        "expunge signing-key rotate",
        "expunge signing-key rotate --compromised-since 2026-03-01T00:00:00Z",
    ),
    "signing-key list": ("expunge signing-key list",),
}


def epilog(path: str) -> str | None:
    """Return the end of a command's help: its examples, a paragraph each."""
    examples = EXAMPLES.get(path)
    return None if examples is None else "\n\n".join(("Examples:", *examples))
