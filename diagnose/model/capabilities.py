"""What a recording can show: the words in which producers say what theirs lacks, and rules what they need.

A rule whose cause cannot be told without one of them `needs` it; a producer whose files do not show it says that they lack it.
"""

#: Each with what it means.
CAPABILITIES = {
    "input": "how long a worker waits for input, apart from its computes",
    "device-times": "when computes begin and end on the device, and not only when the host launched them",
    "worker-times": "how long each worker computes, apart from its waits for others",
    "transfers": "how long a transfer between two stages takes, apart from waits and other work",
    "communication-in-flight": "which communication a worker has in flight while it computes",
    "between-steps": "the time between two steps",
    "peers": "other workers than the one recorded",
    "data-parallel-ranks": "all data-parallel ranks",
    "first-stage": "the first pipeline stage",
    "last-stage": "the last pipeline stage",
    "next-stages": "for each pipeline stage the one after it",
    "collection-rows": "when Python collects garbage",
}
