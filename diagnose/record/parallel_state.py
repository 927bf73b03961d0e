"""Which worker of the job this rank is.

Enters: torch.distributed, a device mesh, Megatron-LM's parallel state, or what the user says. Leaves: `ParallelState`.
"""

import dataclasses
import os
import socket
from collections.abc import Mapping
from typing import Any

#: Names that dimensions of a device mesh go by.
MESH_NAMES = {
    "dp": ("dp", "data_parallel", "dp_replicate", "dp_shard", "replicate", "shard", "fsdp", "ddp"),
    "pp": ("pp", "pipeline", "pipeline_parallel"),
    "tp": ("tp", "tensor_parallel"),
    "cp": ("cp", "context_parallel"),
}


@dataclasses.dataclass(slots=True)
class ParallelState:
    """A rank among data-parallel replicas, pipeline stages, and tensor- and context-parallel members."""

    rank: int = 0
    world: int = 1
    dp: int = 0
    dp_size: int = 1
    stage: int = 0
    pp_size: int = 1
    tp: int = 0
    tp_size: int = 1
    cp: int = 0
    cp_size: int = 1
    #: Ranks that share experts, where any were seen to.
    ep_size: int = 0
    #: Model chunks a rank.
    vpp: int = 1
    #: Positions in the model of this rank's chunks where a schedule says them; else they loop around the ranks.
    chunks: tuple[int, ...] = ()
    #: Name of the schedule, empty where none is known.
    schedule: str = ""
    #: True where a mesh or the user gave it; else the pipeline's process group gives it.
    is_said: bool = False
    #: True where the process group gave rank and world; else they are the launcher's, or those of a job of one process.
    has_group: bool = False
    host: str = dataclasses.field(default_factory=socket.gethostname)

    @property
    def held(self) -> tuple[int, ...]:
        """Positions in the model of this rank's chunks."""
        return self.chunks or tuple(range(self.stage, self.vpp * self.pp_size, self.pp_size))

    def place(self, said: Mapping[str, int | None], *, has_mesh: bool = False) -> None:
        """Take over what somebody says of this worker; None stands for what is not said.

        Raises
        ------
        ValueError
            Nothing says which replica it is of.
        """
        given = {key: value for key, value in said.items() if value is not None}
        for key, value in given.items():
            setattr(self, key, value)
        if given.keys() & {"pp_size", "tp_size", "cp_size"} and not (has_mesh or self.is_said):
            if "dp_size" not in given:
                self.dp_size = max(self.world // (self.pp_size * self.tp_size * self.cp_size), 1)
            if "dp" not in given:
                if self.dp_size > 1:
                    raise ValueError(
                        "dp_rank is not said; with pp_size, tp_size or cp_size give dp_rank, too, or a mesh"
                    )
                self.dp = 0
        self.is_said = self.is_said or has_mesh or bool(given)

    def join(self, found: "ParallelState") -> None:
        """Take over what is found once there is a process group; what schedules said of themselves stays."""
        for field in (
            "rank",
            "world",
            "dp",
            "dp_size",
            "stage",
            "pp_size",
            "tp",
            "tp_size",
            "cp",
            "cp_size",
            "has_group",
        ):
            setattr(self, field, getattr(found, field))

    def note_pipeline(self, group: Any, stage: int, n_stages: int, chunks: tuple[int, ...]) -> None:
        """Take over what a pipeline schedule knows of itself; `chunks` are the positions in the model of what this rank holds."""
        self.vpp, self.chunks = len(chunks), chunks
        if self.is_said:
            return
        import torch.distributed as dist

        self.stage, self.pp_size = stage, n_stages
        ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        self.dp = replica_of(self.rank, ranks)
        self.dp_size = self.world // n_stages

    def metadata(self) -> dict[str, int | str]:
        """Say the sizes, and the schedule, in the words of the trace format."""
        said: dict[str, int | str] = {"schedule": self.schedule} if self.schedule else {}
        if self.ep_size > 1 and self.dp_size % self.ep_size == 0:
            said["ep_size"] = self.ep_size
        return said | {
            "dp_size": self.dp_size,
            "pp_size": self.pp_size,
            "tp_size": self.tp_size,
            "cp_size": self.cp_size,
            "vpp_size": self.vpp,
            "world_size": self.dp_size * self.pp_size * self.tp_size * self.cp_size,
        }


def replica_of(rank: int, pipeline: list[int]) -> int:
    """Number the pipeline that a rank belongs to, in a job of nothing but pipelines of this shape.

    >>> replica_of(5, [4, 5, 6, 7])
    1
    >>> replica_of(5, [1, 5, 9, 13])
    1
    """
    stride = pipeline[1] - pipeline[0] if len(pipeline) > 1 else 1
    return rank // (stride * len(pipeline)) * stride + rank % stride


def find_parallel_state(mesh: Any, said: dict[str, int | None], stage_ranks: list[int]) -> ParallelState:
    """Find out which worker this is.

    Parameters
    ----------
    mesh : torch.distributed.DeviceMesh or None
        With dimensions by the names of `MESH_NAMES`; several of one kind (`dp_replicate` and `dp_shard`) are multiplied.
    said : dict of str to int or None
        Fields of `ParallelState` that the user gave.
    stage_ranks : list of int
        Global rank of each stage of this pipeline; empty where a hook finds out.

    Raises
    ------
    ValueError
        The mesh has no dimension with a known name, the rank is none of the pipeline's, or nothing says which replica it is of.
    """
    import torch.distributed as dist

    state = ParallelState()
    if dist.is_available() and dist.is_initialized():
        state.rank, state.world, state.has_group = dist.get_rank(), dist.get_world_size(), True
    else:
        # Made before `init_process_group`: without this every rank would write the file of rank 0.
        rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if rank.isdecimal() and world.isdecimal() and int(rank) < int(world):
            state.rank, state.world = int(rank), int(world)
    state.dp, state.dp_size = state.rank, state.world
    if mesh is not None:
        _read_mesh(state, mesh)
    given = {key: value for key, value in said.items() if value is not None}
    if stage_ranks:
        if state.rank not in stage_ranks:
            raise ValueError(
                f"stage_ranks is {stage_ranks}; expected those of the pipeline that rank {state.rank} belongs to"
            )
        of_pipeline = {"stage": stage_ranks.index(state.rank), "pp_size": len(stage_ranks)}
        given = of_pipeline | {"dp": replica_of(state.rank, stage_ranks)} | given
    state.place(given, has_mesh=mesh is not None)
    return state


def is_known(mesh: Any) -> bool:
    """True for a device mesh that says which worker this is: it has dimensions that are known here, and this rank is in it."""
    names = getattr(mesh, "mesh_dim_names", None) or ()
    known = {name for several in MESH_NAMES.values() for name in several}
    return bool(known & set(names)) and mesh.get_coordinate() is not None


def count_hosts(world: int) -> int | None:
    """Count the job's hosts by what its launcher says; None where none says it.

    `torchrun` runs one group of workers a host.
    """
    if world == 1:
        return 1
    said = (os.environ.get(name, "") for name in ("GROUP_WORLD_SIZE", "SLURM_NNODES"))
    return next((int(count) for count in said if count.isdecimal() and 0 < int(count) <= world), None)


def _read_mesh(state: ParallelState, mesh: Any) -> None:
    """Take the coordinates of this rank from a device mesh."""
    names = mesh.mesh_dim_names or ()
    known = {name for several in MESH_NAMES.values() for name in several}
    if not known & set(names):
        raise ValueError(f"the mesh has the dimensions {names}; expected some of {', '.join(sorted(known))}")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"this rank is not in the mesh {mesh}; give each rank a mesh that it is part of")
    for kind, several in MESH_NAMES.items():
        at, size = 0, 1
        for i, name in enumerate(names):
            if name in several:
                at, size = at * mesh.size(i) + coordinate[i], size * mesh.size(i)
        field = "stage" if kind == "pp" else kind
        setattr(state, field, at)
        setattr(state, f"{kind}_size", size)
