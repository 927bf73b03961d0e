"""Context-parallel sharding by plain loops over tokens: the oracle for `tests.packing.sharding`."""


def attend_per_sequence(lengths: list[int], cp: int) -> tuple[list[int], list[int]]:
    """Count tokens and attended pairs of each rank, token by token, where the sequence is cut into 2 cp chunks."""
    n = sum(lengths)
    size, rest = divmod(n, 2 * cp)
    chunk_of = [chunk for chunk in range(2 * cp) for _ in range(size + (chunk < rest))]
    tokens, pairs = [0] * cp, [0] * cp
    at = 0
    for length in lengths:
        for position in range(length):
            rank = min(chunk_of[at], 2 * cp - 1 - chunk_of[at])
            tokens[rank] += 1
            pairs[rank] += position + 1
            at += 1
    return tokens, pairs


def attend_per_document(lengths: list[int], cp: int) -> tuple[list[int], list[int]]:
    """Count tokens and attended pairs of each rank, token by token, where every document is cut into 2 cp chunks."""
    tokens, pairs = [0] * cp, [0] * cp
    left = 0
    for length in lengths:
        size = length // (2 * cp)
        for position in range(length):
            if position < 2 * cp * size:
                chunk = position // size
                rank = min(chunk, 2 * cp - 1 - chunk)
            else:
                rank, left = left % cp, left + 1
            tokens[rank] += 1
            pairs[rank] += position + 1
    return tokens, pairs
