"""Secrets in text: what is masked, and what only looks like one."""

import pytest

from diagnose.bundle.secrets import Secrets

KEY = "0123456789" * 4


@pytest.mark.parametrize(
    ("text", "masked", "kind"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "HF_TOKEN=***", "Hugging Face token"),
        (f"wandb: Using key {KEY}", "wandb: Using key ***", "W&B key"),
        ("postgres://bob:s3cret@db/x", "postgres://***@db/x", "password in a URL"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = ***", "key"),
        ("id AKIAIOSFODNN7EXAMPLE", "id ***", "AWS key"),
        ("Authorization: Bearer abc.def.ghijk", "Authorization: Bearer ***", "credentials of a request"),
        ("Authorization: Basic Ym9iOmhlbGxv", "Authorization: Basic ***", "credentials of a request"),
        ('{"password": "hunter22", "step": 3}', '{"password": "***", "step": 3}', "password"),
        (r"{\"api_key\": \"abcd1234efgh\"}", r"{\"api_key\": \"***\"}", "key"),
        ("machine api.wandb.ai login user password abcdefgh", "machine api.wandb.ai login user password ***", "password"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123", "***", "GitHub token"),
        ("s3/x?X-Amz-Signature=abcdef0123&y=1", "s3/x?X-Amz-Signature=***&y=1", "signature in a URL"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc", "***", "JSON Web Token"),
        ('DEPLOY_TOKEN="abcd1234abcd1234"', 'DEPLOY_TOKEN="***"', "token"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nstep 2",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----\nstep 2",
            "private key",
        ),
    ],
)  # fmt: skip
def test_masked(text: str, masked: str, kind: str) -> None:
    """What opens a door is masked and counted once, what stands around it stays, and a second look finds nothing more."""
    secrets = Secrets()
    assert secrets.mask(text.encode()).decode() == masked
    assert secrets.counts == {kind: 1}
    assert secrets.mask(masked.encode()).decode() == masked and secrets.counts == {kind: 1}


@pytest.mark.parametrize(
    "text",
    [
        "{'pad_token': '<|end|>', 'eos_token': '</s>', 'max_tokens': 4096, 'tokens': 12345678901234567890}",
        "mask_token=[MASK] unk_token_id=3 bos_token_id: 128000",
        "moe_token_dispatcher_type ................... alltoall",
        " iteration  10/ 1200 | consumed samples: 2560 | elapsed time per iteration (ms): 1851.0 | tokens per second: 12",
        "password=None api_key='' secret: null access_key=$KEY",
        f"git commit {KEY}",
        "http://[::1]:8000/x and user@host",
        '{"ph": "X", "name": "nccl:all_reduce", "args": {"correlation": 7, "key": "value"}}',
        "step: 10  loss: 3.2  memory: 10GiB  tps: 5,853  mfu: 34.28%",
    ],
)
def test_not_masked(text: str) -> None:
    """Tokens of a vocabulary, counts, settings without a value and lines of logs stay as they are."""
    secrets = Secrets()
    assert secrets.mask(text.encode()).decode() == text
    assert not secrets.counts
