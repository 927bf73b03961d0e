"""One script a framework: `FRAMEWORK` says what the job is, and `main` trains one rank. Nothing heavy is imported outside `main`.

`job.model()`, `job.loss`, `job.loader()` or `job.dataset()` with `job.loader_options` bring the fault. The loop does `job.n_steps`
steps of `job.accumulate` backwards; after a step it evaluates (`job.evaluates_after`) and saves (`job.saves_after`, `job.save`).
Around it stands `job.recorder()`; where something else records into `job.trace`, `job.finish()` comes at the end.
"""
