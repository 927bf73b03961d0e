"""Other names for hosts, users, addresses and paths."""

import pytest

from diagnose.bundle.names import Names


def renamed(*texts: str) -> list[str]:
    """Find the names in all texts, and replace them."""
    names = Names()
    for text in texts:
        names.find(text.encode())
    return [names.replace(text.encode()).decode() for text in texts]


def test_one_host_one_name() -> None:
    """A host has one name wherever it stands, with or without its domain, in the order of the old names."""
    found = renamed(
        "gpu-12:123:456 [0] NCCL INFO Using 10.3.4.12<0> eth0",
        '{"hostname":"gpu-2.acme.net", "rank": 3}',
        "#  Rank  0 Group  0 Pid  7 on      gpu-3 device  0",
        "[gpu-2] tcp://gpu-12:29500 gpu-2.acme.net train-gpu-3.log gpu-[1-3] gpu_type gpu: A100",
    )
    assert found == [
        "host-001:123:456 [0] NCCL INFO Using 10.100.100.100<0> eth0",
        '{"hostname":"host-002.domain-1", "rank": 3}',
        "#  Rank  0 Group  0 Pid  7 on      host-003 device  0",
        "[host-002] tcp://host-001:29500 host-002.domain-1 train-host-003.log hosts[..] gpu_type gpu: A100",
    ]


def test_a_host_with_its_domain_is_known_anywhere() -> None:
    """No setting says that it is a host; its short name is found then, too, and what has dots and is no host stays."""
    found = renamed("saving on gpu-17.corp.acme.com, torch.nn.functional.gelu 1.2.3", "gpu-17: done")
    assert found == ["saving on host-001.domain-1, torch.nn.functional.gelu 1.2.3", "host-001: done"]


def test_paths_keep_their_shape() -> None:
    """Parts of a path have names of their own; what lies in a public package, and line numbers, stay."""
    found = renamed(
        'File "/home/bob/llama/train.py", line 12',
        "/home/bob/llama/model.py(33): forward",
        "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2501",
        r'"\/home\/bob\/llama\/train.py" /dev/nvidia0 /usr/lib/libc.so',
    )
    assert found == [
        'File "/home/user-1/dir-1/file-2.py", line 12',
        "/home/user-1/dir-1/file-3.py(33): forward",
        "/opt/dir-4/dir-5/python3.11/site-packages/torch/distributed/distributed_c10d.py:2501",
        r'"\/home\/user-1\/dir-1\/file-2.py" /dev/nvidia0 /usr/lib/libc.so',
    ]


def test_users_addresses_and_urls() -> None:
    """Users are replaced where they stand as such, and everywhere when their name is no word; addresses and URLs everywhere."""
    found = renamed(
        "USER=robert LOGNAME=max, USER=root",
        "run of robert: max time 3, recall@10: 0.5",
        "https://wandb.ai/acme/runs/x bob@acme.com 127.0.0.1 10.0.0.9 10.0.0.10 fe80::1ff:fe23:4567:890a",
    )
    assert found == [
        "USER=user-3 LOGNAME=user-2, USER=root",
        "run of user-3: max time 3, recall@10: 0.5",
        "https://url-1 user-1 127.0.0.1 10.100.100.101 10.100.100.100 address-2",
    ]


@pytest.mark.parametrize(
    "text",
    [
        " iteration  10/ 1200 | elapsed time per iteration (ms): 1851.0 | throughput per GPU (TFLOP/s/GPU): 239.8",
        "  1%|#  | 41/4870 [04:27<8:45:34,  6.53s/it]",
        "[2026-01-01 00:00:00.000000] 2026/01/02 12:34:56 01:02:03:04 driver 530.30.02 at::native::add c10::cuda",
        '{"ph": "X", "name": "void at::native::vectorized_elementwise_kernel<4, a>", "ts": 1720000000123.456}',
        "# Avg bus bandwidth    : 239.821 and/or min/max it/s",
    ],
)
def test_lines_without_names_stay(text: str) -> None:
    """Counts, units, times, versions and kernels are no names."""
    assert renamed(text) == [text]


def test_a_job_is_renamed_in_its_keys_alone() -> None:
    """What metadata calls the job may be any word, and is replaced where it stands."""
    names = Names()
    assert (
        names.replace_jobs(b"job_id: step\nname: big model\ndp_size: 4\n")
        == b"job_id: job-1\nname: job-2\ndp_size: 4\n"
    )
    assert names.replace_jobs(b'{"job_id": "step", "dp_size": 4}') == b'{"job_id": "job-1", "dp_size": 4}'
