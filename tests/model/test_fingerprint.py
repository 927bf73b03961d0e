"""Which fault is which: what changes a fingerprint, and what must not."""

import dataclasses

import msgspec
import pytest

from diagnose.model.fingerprint import name_fault, sum_losses
from diagnose.model.place import Link, Where, Worker
from diagnose.model.trace import Job

JOB = Job("run-1", 2, 4, 1, 1, 1, 8, name="llama", owner="ann", framework="torch 2.9.1")
AT = Where(workers=(Worker(1, 2, rank=5),))
ON_HOST = Where(workers=(Worker(1, 2, rank=5, host="gpu-017"),), hosts=("gpu-017",))


def fault(where: Where = AT, *, who: str = "platform", cause: str = "worker-fault", **job: object) -> str:
    """Give the fingerprint of a fault of a job that is as usual but for what is said."""
    return name_fault(dataclasses.replace(JOB, **job), cause, who, where)


@pytest.mark.parametrize(
    "job",
    [
        {"job_id": "run-2"},
        {"started_at": "2026-01-01", "finished_at": "2026-01-02"},
        {"framework": "torch 2.10.0"},
        {"steps_total": 7, "gpu_type": "H100"},
    ],
)
def test_runs_of_one_job_share_it(job: dict) -> None:
    """Neither ids, nor times, nor an upgrade of the framework make another fault."""
    assert fault(**job) == fault()


@pytest.mark.parametrize(
    "job",
    [{"name": "gpt"}, {"owner": "bob"}, {"owner": None}, {"framework": "Megatron-LM"}, {"dp_size": 4}, {"vpp_size": 2}],
)
def test_another_job_is_another_fault(job: dict) -> None:
    """Jobs of one shape do not share a finding."""
    assert fault(**job) != fault()


@pytest.mark.parametrize(
    "where",
    [
        Where(),
        Where(workers=(Worker(0, 2),)),
        Where(workers=(Worker(1, 2), Worker(1, 3))),
        Where(stages=(2,)),
        Where(links=(Link.between(Worker(1, 2), Worker(1, 3)),)),
    ],
)
def test_another_place_is_another_fault(where: Where) -> None:
    """The same cause elsewhere is told anew."""
    assert fault(where) != fault()
    assert fault(where, who="job owner") == fault(where, who="platform"), "no host is known: the place is the job's"


def test_the_worst_of_several_may_be_another_each_night() -> None:
    """A slow replica is one fault, whichever of its workers is the slowest tonight, and whichever is left out."""
    workers = [Worker(1, p) for p in range(4)]
    assert len({fault(Where(workers=tuple(some))) for some in (workers, workers[::-1], workers[1:])}) == 1


def test_the_longest_of_several_stages_may_be_another_each_night() -> None:
    """Two stages that are nearly as long are one fault in either order, and no fault of one of them."""
    both, turned, one = (fault(Where(stages=stages)) for stages in ((0, 3), (3, 0), (3,)))
    assert both == turned != one


def test_a_fault_of_a_machine_is_that_of_its_host() -> None:
    """Whatever job runs there, at whatever place; a cause that the job's owner mends stays with the job."""
    elsewhere = msgspec.structs.replace(ON_HOST, workers=(Worker(0, 0, host="gpu-017"),))
    assert fault(ON_HOST) == fault(elsewhere, name="gpt", owner="bob", dp_size=16)
    assert fault(ON_HOST) != fault(Where(workers=(Worker(1, 2, host="gpu-018"),), hosts=("gpu-018",)))
    assert fault(ON_HOST) != fault(ON_HOST, cause="network-fault")
    assert fault(ON_HOST, who="job owner") == fault(AT, who="job owner") != fault(elsewhere, who="job owner")


@pytest.mark.parametrize("name", ["42", "träning\u0308", "a\nb", "<b>x</b>", "\ud800", '"]', ""])
def test_names_may_be_anything(name: str) -> None:
    """Each makes a fingerprint of its own, of 16 hexadecimal digits."""
    found = fault(name=name, job_id="")
    assert len(found) == 16 and int(found, 16) >= 0 and found != fault()


def test_losses() -> None:
    """Two runs of one job in one night count both; of two nights the newer; what nobody knows is not 0."""
    assert sum_losses([("a", 5.0, 1.0), ("a", 5.0, 2.0), ("a", 4.0, 100.0)]) == 3.0
    assert sum_losses([("a", 5.0, None)]) is None and sum_losses([]) is None
    assert sum_losses([("a", 5.0, None), ("b", 4.0, 1.0)]) == 1.0
