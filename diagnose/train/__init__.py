"""Training of the classifier: jobs with known faults in, `judge/classifier.json` out; nothing that diagnoses imports it.

measure.py      jobs of a seed, generated and measured         -> MeasuredJob, kept in a file
table.py        what the trees see, and what is true           -> Table
trees.py        one boosted model a cause (scikit-learn)       -> flat arrays
calibrate.py    scores to probabilities, on other jobs         -> two numbers a cause
likeness.py     where the jobs of training lie                 -> knots, prototypes, a limit
fit.py          all of it in order, and how good it is         -> the file's content

python -m diagnose.train

How good it is on what it was not trained on: `python -m tests.scoring.leave_out`.
"""
