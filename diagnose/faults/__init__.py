"""Jobs made by simulation, healthy or with a known fault: for tests, fixtures and training, never for diagnosing.

Enters: a `JobSpec` and faults. Leaves: a trace as a training job would record it, and the truth about it.

    spec.py        what a job is          -> JobSpec
    programme.py   what each worker runs  -> Programme
    inputs.py      how long things take   -> Inputs
    fault.py       what a fault is; one file a cause beside it turns Inputs into Inputs
    simulate.py    when things happen     -> Times
    record.py      what a tracer records  -> pyarrow.Table
    generate.py    all of it in order     -> Job, with its Truth

A new cause is a new file: a subclass of `Fault`, and `draw_fault(spec, rng, *, strength, onset)`. The name of the
file is the name of the cause with underscores, and the command line finds it by that.
"""
