"""What the description of a process group says that its ranks share, as Megatron-LM and device meshes of torch describe it."""

import re

#: Descriptions of the groups of tensor- and context-parallel members, and of the stages of a pipeline.
DESCRIBED = {
    "tp": re.compile(r"tensor_model_parallel(?:_group)?|(?:mesh_)?tp", re.IGNORECASE),
    "cp": re.compile(r"context_parallel(?:_group)?|(?:mesh_)?cp", re.IGNORECASE),
    "pp": re.compile(r"pipeline_model_parallel(?:_group)?|(?:mesh_)?pp", re.IGNORECASE),
}
#: ... and of all over which sequences are split, ring attention's and others'.
_SPLITS_SEQUENCES = re.compile(r"context|sequence|ulysses|mesh_[cs]p|^[cs]p$", re.IGNORECASE)


def is_described(description: str, kind: str) -> bool:
    """Say whether a group is one of a kind of `DESCRIBED`."""
    return DESCRIBED[kind].fullmatch(description) is not None


def splits_sequence(description: str) -> bool:
    """Say whether the ranks of a group hold parts of the same sequences: they exchange within computes."""
    return _SPLITS_SEQUENCES.search(description) is not None


def may_share_experts(description: str) -> bool:
    """Say whether ranks that exchange all with all may do so for their experts; parts of sequences and layers are sent so, too."""
    return not splits_sequence(description) and not is_described(description, "tp")
