"""What Megatron-Core asks of CUDA, answered by the CPU. Needs torch."""

import torch


def stand_in_for_cuda():
    """Let what Megatron-Core asks of CUDA be answered by the CPU; to be called before it is imported."""

    def nothing(*_args, **_kwargs):
        """Answer what synchronises, and what only CUDA has."""

    def on_cpu(make):
        return lambda *args, **kwargs: make(
            *args, **kwargs | ({"device": "cpu"} if kwargs.get("device") == "cuda" else {})
        )

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = nothing
    for name in ("zeros", "ones", "empty", "tensor"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    type_of = torch.Tensor.type
    # Gradients are clipped only where their type is one of CUDA's.
    torch.Tensor.type = lambda tensor, *args: (
        type_of(tensor, *args) if args else type_of(tensor).replace("torch.", "torch.cuda.")
    )
