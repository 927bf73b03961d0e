"""Jobs made by simulation, healthy or with a known fault: for tests, fixtures and training, never for diagnosing.

Enters: a `JobSpec` and faults. Leaves: a trace as a training job would record it, and the truth about it.

    spec.py        what a job is          -> JobSpec
    world.py       one of a random world  -> JobSpec, and the names of its features
    programme.py   what each worker runs  -> Programme
    example.py     what the file of a cause brings for tests: clear jobs, look-alikes, its fixture
    inputs.py      how long things take   -> Inputs
    fault.py       what a fault is; one file a cause beside it turns Inputs into Inputs
    simulate.py    when things happen     -> Times
    record.py      what a tracer records  -> pyarrow.Table
    generate.py    all of it in order     -> Job, with its Truth

A new cause is a new file: a subclass of `Fault`; `KINDS` and `draw_fault(spec, rng, *, strength, onset, kind)` (see `fault.py`);
and what tests run over: `EXAMPLES`, `PLAIN`, `LOOK_ALIKES` and `FIXTURE` (see `example.py`). The name of the file is the name of
the cause with underscores, and `catalogue.py` finds it by that. A new kind of a fault is a line in `KINDS`, and what `draw_fault`
draws for it.
"""
