"""Mutants that no test can kill, because nobody could see them, with the reason.

By file, line of text, change, and which of several equal ones in such lines.
"""

SET_ASIDE: dict[tuple[str, str, str, int], str] = {
    (
        "diagnose/judge/alternatives.py",
        "break",
        "break -> continue",
        0,
    ): "what comes later is less probable still",
    (
        "diagnose/judge/checked_json.py",
        "return not found or (set(map(type, found)) <= {int, float} and -MOST <= min(found) <= max(found) <= MOST)",
        "-MOST <= min(found) <= max(found) <= MOST -> (-MOST <= min(found) <= max(found) < MOST)",
        0,
    ): "numbers with one of just `MOST` are looked at one by one, by the same measure",
    (
        "diagnose/judge/classifier.py",
        "if log_odds >= 0:",
        "log_odds >= 0 -> (log_odds > 0)",
        0,
    ): "both ways give one half at log odds of 0",
    (
        "diagnose/judge/rest.py",
        "return max(waste if waste < NOISY_SHARE else waste - max(_measure_structure(analysis), 0.0), 0.0)",
        "waste < NOISY_SHARE -> (waste <= NOISY_SHARE)",
        0,
    ): "another answer only where a share is `NOISY_SHARE` to the last bit",
    (
        "diagnose/judge/rule_file.py",
        "near = difflib.get_close_matches(name, known, n=1, cutoff=SIMILAR)",
        "1 -> 2",
        0,
    ): "only the nearest is read",
    (
        "diagnose/judge/unchecked.py",
        "if np.ptp(first_s) > SAME_START_S:",
        "np.ptp(first_s) > SAME_START_S -> (np.ptp(first_s) >= SAME_START_S)",
        0,
    ): "another answer only where two starts are apart by a nanosecond to the last bit",
    (
        "diagnose/whatif/barriers.py",
        "return np.asarray(lanes & (early <= 1.0 - HELD_SHARE) & explained)",
        "early <= 1.0 - HELD_SHARE -> (early < 1.0 - HELD_SHARE)",
        0,
    ): "another answer only where a share is what is left of `HELD_SHARE` to the last bit",
    (
        "diagnose/whatif/batches.py",
        "return values.reshape(n_nodes, -1)[:, ::stride]",
        "1 -> 2",
        0,
    ): "numpy takes any negative number for the axis that is left",
    (
        "diagnose/whatif/batches.py",
        'warnings.simplefilter("ignore", RuntimeWarning)  # nodes that no lane recorded are in no batch',
        'warnings.simplefilter("ignore", RuntimeWarning) -> pass',
        0,
    ): "a warning, which tests of mutants ignore; no time changes",
    (
        "diagnose/whatif/components/between_steps.py",
        "shown = late_s[following][busy] >= SHOWN_SHARE * tail_s[busy]",
        "late_s[following][busy] >= SHOWN_SHARE * tail_s[busy] -> (late_s[following][busy] > SHOWN_SHARE * tail_s[busy])",
        0,
    ): "another answer only where two times agree to the last bit",
    (
        "diagnose/whatif/components/expert.py",
        "return np.asarray(np.maximum(products.sum(axis=-1) / np.maximum(squares.sum(axis=-1), TINY_RATIO), 0.0))",
        "-1 -> (1)",
        0,
    ): "both arrays have two axes: the last is axis 1",
    (
        "diagnose/whatif/components/gc_pause.py",
        "if known and 2 * at[0].sum() < long[0].sum():",
        "2 * at[0].sum() < long[0].sum() -> (2 * at[0].sum() <= long[0].sum())",
        0,
    ): "another answer only where just half of the stalls are where they are frequent",
    (
        "diagnose/whatif/components/input_delay.py",
        "alike = left & found.late_or_long()[0][0, here.stage]",
        "0 -> 1",
        0,
    ): "who stands still mostly is who is not late mostly: another answer only where just half are late",
    (
        "diagnose/whatif/components/input_delay.py",
        "at[:] = 2.0 * rate(long[0, here.others, 0], there[0, here.others, 0]) < rate(forward[0], exists[0])",
        (
            "2.0 * rate(long[0, here.others, 0], there[0, here.others, 0]) < rate(forward[0], exists[0]) "
            "-> (2.0 * rate(long[0, here.others, 0], there[0, here.others, 0]) <= rate(forward[0], exists[0]))"
        ),
        0,
    ): "another answer only where one rate is just twice the other",
    (
        "diagnose/whatif/components/microbatch.py",
        "if correlation < MIN_CORRELATION or not agree:",
        "correlation < MIN_CORRELATION -> (correlation <= MIN_CORRELATION)",
        0,
    ): "another answer only where a correlation is one half to the last bit",
    (
        "diagnose/whatif/graph.py",
        "forget[position].append(node)",
        "forget[position].append(node) -> pass",
        0,
    ): "ends of nodes are kept longer in memory; no time changes",
    (
        "diagnose/whatif/graph.py",
        "latest = np.full((opened.shape[0], int(self.groups.max()) + 1), -np.inf)",
        "1 -> 2",
        0,
    ): "a group more, of no rank, is read by nobody",
    (
        "diagnose/whatif/levels.py",
        "short = n_on[head] < MIN_CHAIN",
        "n_on[head] < MIN_CHAIN -> (n_on[head] <= MIN_CHAIN)",
        0,
    ): "a chain ends when it does, added up at once or level by level",
    (
        "diagnose/whatif/occupied.py",
        "inside |= (start[before + 1] <= begins + slack) & (end[before + 1] >= ends - slack) & (start[before + 1] < ends)",
        "start[before + 1] <= begins + slack -> (start[before + 1] < begins + slack)",
        0,
    ): "another answer only where two times agree to the last bit",
    (
        "diagnose/whatif/occupied.py",
        "overlaps = (end[before] > begins + slack) | (start[before + 1] < ends - slack)",
        "end[before] > begins + slack -> (end[before] >= begins + slack)",
        0,
    ): "another answer only where two times agree to the last bit",
    (
        "diagnose/whatif/removal.py",
        "for kind in np.unique(kinds[stall > 0]).tolist():",
        "stall > 0 -> (stall >= 0)",
        0,
    ): "a kind that has no seconds adds none",
    (
        "diagnose/whatif/replay.py",
        "elif event.across_dp and (starts[2] is not starts[0] or starts[0].size > 1 or starts[0] != starts[1]):",
        "0 -> 1",
        2,
    ): "where own times have one lane alone, what a rank does among peers is not used",
    (
        "diagnose/whatif/scenarios.py",
        "with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:",
        "4 -> 5",
        0,
    ): "how many threads replay does not change what they find",
    (
        "diagnose/whatif/slow_places.py",
        "recv_of = np.full(len(o.block.nodes), -1)",
        "1 -> 2",
        0,
    ): "whatever is below 0 is no recv",
}
