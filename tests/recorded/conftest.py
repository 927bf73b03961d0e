"""What makes recordings is a program, and needs torch: no test looks into it."""

collect_ignore = ["make.py"]
