"""How a process of ours deals with memory: what it has freed it uses again, and what it has imported it keeps.

Arrays of millions of operations come and go by the dozen. By default each one is mapped anew, and the kernel clears its pages: a
quarter of the CPU time of a diagnosis of 7.5 million operations. Read into the same heap, columns leave room for what follows: the
peak is a third lower. Only programs of ours do so, never a process that calls us as a library.
"""

import contextlib
import gc
import os
from collections.abc import Iterator

#: Freed memory at the end of the heap beyond this goes back to the kernel.
KEEP_BYTES = 256 * 2**20
#: Garbage is looked for after so many new objects: 100,000 distinct operations make millions, hardly any of them in circles.
GARBAGE_AFTER = 200_000
#: Parameters of glibc's `mallopt`.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def reuse_freed_memory() -> None:
    """Take arrays from one heap that keeps what is freed; nothing happens where the C library has no such setting."""
    import ctypes

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow reads it when it is imported
    # And numpy this. A heap that is used again asks for few new pages; to clear huge ones took five times as long.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    with contextlib.suppress(OSError, AttributeError, TypeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, KEEP_BYTES), (_M_ARENA_MAX, 1)):
            set_option(option, value)


def give_back() -> None:
    """Give the kernel the pages that nothing stands on, in the midst of the heap too: a millisecond.

    For a process that goes on for weeks: the largest thing it ever did would stay the size of it.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def import_to_stay() -> Iterator[None]:
    """Import much, once: no garbage is looked for meanwhile, nor ever among what there is: a twentieth of a small job."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        gc.enable()
