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
        "diagnose/judge/check.py",
        "return (found[1], int(found[2])) if found else (fault, 0)",
        "0 -> 1",
        0,
    ): "faults without a line are in order by their whole text, of which no two are alike",
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
        "diagnose/judge/collectives_hang.py",
        "keys = np.stack([at[order], transfers[order]], axis=1) if len(order) else np.zeros((0, 2), dtype=np.int64)",
        "2 -> 3",
        0,
    ): "it has no rows to take apart",
    (
        "diagnose/judge/log.py",
        "if abs(math.log(facts.traced_s / recorded_s)) <= math.log(1.0 + CONTRADICTION):",
        (
            "abs(math.log(facts.traced_s / recorded_s)) <= math.log(1.0 + CONTRADICTION) "
            "-> (abs(math.log(facts.traced_s / recorded_s)) < math.log(1.0 + CONTRADICTION))"
        ),
        0,
    ): "another answer only where log and trace are just so far apart, to the last bit",
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
        "diagnose/judge/telemetry.py",
        "odds = cause.confidence / max(1.0 - cause.confidence, 1e-9) * (1.0 - part)",
        "1e-9 -> 2e-09",
        0,
    ): "another answer only where a cause is surer than any is",
    (
        "diagnose/judge/telemetry.py",
        "MAX_SUSPECTS = 64",
        "64 -> 65",
        0,
    ): "a bound of cost: as many suspects, but one",
    (
        "diagnose/judge/unchecked.py",
        "if np.ptp(first_s) > SAME_START_S:",
        "np.ptp(first_s) > SAME_START_S -> (np.ptp(first_s) >= SAME_START_S)",
        0,
    ): "another answer only where two starts are apart by a nanosecond to the last bit",
    (
        "diagnose/judge/verdict.py",
        "and most_gain(analysis.gains, judgement.rule.components) >= least",
        (
            "most_gain(analysis.gains, judgement.rule.components) >= least "
            "-> (most_gain(analysis.gains, judgement.rule.components) > least)"
        ),
        0,
    ): "another answer only where a gain is the least one to the last bit",
    (
        "diagnose/trace/clocks.py",
        "island = np.full(n_clocks, -1, dtype=np.int64)",
        "1 -> 2",
        0,
    ): "any negative number says that no island is known yet",
    (
        "diagnose/triage/store.py",
        "_MIGRATION_LOCK = 7_236_105",
        "7_236_105 -> 7236106",
        0,
    ): "any number that no other program locks by will do",
    (
        "diagnose/triage/store.py",
        'kept = {one.ticket for one in findings if one.state == "open" or (one.fixed_at or 0.0) >= before_s}',
        "0.0 -> 1.0",
        0,
    ): "another answer only for what was mended in the first second of 1970",
    (
        "diagnose/triage/store.py",
        'kept = {one.ticket for one in findings if one.state == "open" or (one.fixed_at or 0.0) >= before_s}',
        "(one.fixed_at or 0.0) >= before_s -> ((one.fixed_at or 0.0) > before_s)",
        0,
    ): "another answer only where two moments agree to the last bit",
    (
        "diagnose/whatif/barriers.py",
        "ROUNDING_S = 1e-9",
        "1e-9 -> 2e-09",
        0,
    ): "sums in another order differ by a millionth of it",
    (
        "diagnose/whatif/barriers.py",
        "continue",
        "continue -> break",
        2,
    ): "it ends a loop that has no more turns",
    (
        "diagnose/whatif/barriers.py",
        "return np.asarray(lanes & (early <= 1.0 - HELD_SHARE) & explained)",
        "early <= 1.0 - HELD_SHARE -> (early < 1.0 - HELD_SHARE)",
        0,
    ): "another answer only where a share is what is left of `HELD_SHARE` to the last bit",
    (
        "diagnose/whatif/batches.py",
        "at = at[(np.abs(few[back:] - few[:-back]) <= tolerance_s).any(axis=1)] if len(at) else at",
        "np.abs(few[back:] - few[:-back]) <= tolerance_s -> (np.abs(few[back:] - few[:-back]) < tolerance_s)",
        0,
    ): "another answer only where two starts are apart by the tolerance to the last bit",
    (
        "diagnose/whatif/batches.py",
        "few = start_s[p2p, : 1 + math.floor((1.0 - HELD_SHARE) * start_s.shape[1])]",
        "1.0 -> 2.0",
        0,
    ): "more lanes are asked first; whoever is apart in the lanes asked later is so, too",
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
        "diagnose/whatif/batches.py",
        "self.is_complete = not (np.isnan(self.start_s).any() or np.isnan(self.end_s).any())",
        "np.isnan -> (np).isfinite",
        0,
    ): "a job without gaps is asked as one with gaps is, with the same answer",
    (
        "diagnose/whatif/clean.py",
        "long_s = [*met.reshape(3, -1).mean(axis=1), *last.reshape(3, -1).mean(axis=1)]",
        "1 -> 2",
        2,
    ): "numpy takes any negative number for the axis that is left",
    (
        "diagnose/whatif/clocks.py",
        "before = np.minimum(np.searchsorted(every_step, rows.step), len(every_step) - 1)",
        "1 -> 2",
        0,
    ): "rows of the last step go on in none",
    (
        "diagnose/whatif/components/attribution.py",
        "TINY_S = 1e-12",
        "1e-12 -> 2e-12",
        0,
    ): "a bound that keeps a division by 0 away: no compute is as short",
    (
        "diagnose/whatif/components/between_steps.py",
        "if trace.step_origin_s is not None and len(trace.step_origin_s) > 1:",
        "len(trace.step_origin_s) > 1 -> (len(trace.step_origin_s) >= 1)",
        0,
    ): "after the only step nobody knows what follows, either way",
    (
        "diagnose/whatif/components/between_steps.py",
        "shown = late_s[following][busy] >= SHOWN_SHARE * tail_s[busy]",
        "late_s[following][busy] >= SHOWN_SHARE * tail_s[busy] -> (late_s[following][busy] > SHOWN_SHARE * tail_s[busy])",
        0,
    ): "another answer only where two times agree to the last bit",
    (
        "diagnose/whatif/components/evaluation.py",
        "at = (step_ratio.max(axis=0) > SLOW_WHOLE_STEP_RATIO) & (excess[0] >= FORWARD_SHARE * excess.sum(axis=0))",
        "step_ratio.max(axis=0) > SLOW_WHOLE_STEP_RATIO -> (step_ratio.max(axis=0) >= SLOW_WHOLE_STEP_RATIO)",
        0,
    ): "another answer only where a step is just so many times the usual one, to the last bit",
    (
        "diagnose/whatif/components/gc_pause.py",
        "if known and 2 * at[0].sum() < long[0].sum():",
        "2 * at[0].sum() < long[0].sum() -> (2 * at[0].sum() <= long[0].sum())",
        0,
    ): "another answer only where just half of the stalls are where they are frequent",
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
        "diagnose/whatif/components/input_delay.py",
        "together |= some & ((chance * share.size < CHANCE) & (2.0 * elsewhere < share))[:, :, None]",
        "2.0 * elsewhere < share -> (2.0 * elsewhere <= share)",
        0,
    ): "another answer only where the one share is just twice the other",
    (
        "diagnose/whatif/components/malloc_pause.py",
        "return both and chance_of_growth(stalled.sum(axis=0), there.sum(axis=0)) < CHANCE",
        (
            "chance_of_growth(stalled.sum(axis=0), there.sum(axis=0)) < CHANCE -> "
            "(chance_of_growth(stalled.sum(axis=0), there.sum(axis=0)) <= CHANCE)"
        ),
        0,
    ): "another answer only where a chance is just so small, to the last bit",
    (
        "diagnose/whatif/components/microbatch.py",
        "if correlation < MIN_CORRELATION or not agree:",
        "correlation < MIN_CORRELATION -> (correlation <= MIN_CORRELATION)",
        0,
    ): "another answer only where a correlation is one half to the last bit",
    (
        "diagnose/whatif/components/stage.py",
        "pace = np.nan_to_num(log.reshape(len(log), -1, n_stages, log.shape[2]).mean(axis=(0, 1)))  # (n_stages, n_steps)",
        "1 -> 2",
        0,
    ): "numpy takes any negative number for the axis that is left",
    (
        "diagnose/whatif/components/step.py",
        "planned &= by_step > median(by_step) + TOGETHER_SHARE / 2 * n_workers",
        (
            "by_step > median(by_step) + TOGETHER_SHARE / 2 * n_workers "
            "-> (by_step >= median(by_step) + TOGETHER_SHARE / 2 * n_workers)"
        ),
        0,
    ): "another answer only where the workers at once are just so many more than usual",
    (
        "diagnose/whatif/components/transfer.py",
        "by_stage = [s[:, :, nan_median(s, axis=(0, 1)) <= TWO_LEVELS_RATIO * usual] for s in by_stage]",
        "nan_median(s, axis=(0, 1)) <= TWO_LEVELS_RATIO * usual -> (nan_median(s, axis=(0, 1)) < TWO_LEVELS_RATIO * usual)",
        0,
    ): "another answer only where a median is just so many times the usual one, to the last bit",
    (
        "diagnose/whatif/components/transfer.py",
        "slow_links[stage] = max(slow_links.get(stage, 0.0), float(median(level[slow])) / usual)",
        "0.0 -> 1.0",
        0,
    ): "a slow level is above the usual one",
    (
        "diagnose/whatif/components/worker.py",
        "even = np.where(np.abs(own - pace) <= ORDINARY_DEVIATIONS * sigma, pace, own)",
        "np.abs(own - pace) <= ORDINARY_DEVIATIONS * sigma -> (np.abs(own - pace) < ORDINARY_DEVIATIONS * sigma)",
        0,
    ): "another answer only where a step is off by just so many deviations, to the last bit",
    (
        "diagnose/whatif/contention.py",
        "[i * 2**32 + np.repeat(np.arange(len(r)), r.shape[1]) for r, (i, _, _) in zip(ratios, places, strict=True)]",
        "i * 2**32 -> (i / 2 ** 32)",
        0,
    ): "a fraction of a step keeps the steps of blocks apart as well",
    (
        "diagnose/whatif/delays.py",
        "late = delay_s.max(axis=(1, 2)) > SHORTEST_S",
        "delay_s.max(axis=(1, 2)) > SHORTEST_S -> (delay_s.max(axis=(1, 2)) >= SHORTEST_S)",
        0,
    ): "what is just so late is beyond nothing, either",
    (
        "diagnose/whatif/dependencies.py",
        "N_TYPES = 1000",
        "1000 -> 1001",
        0,
    ): "any number above that of types will do",
    (
        "diagnose/whatif/evidence.py",
        "hit = np.nonzero(overlap > 0)",
        "overlap > 0 -> (overlap >= 0)",
        0,
    ): "an overlap of 0 s adds nothing",
    (
        "diagnose/whatif/graph.py",
        "return np.array_split(nodes, min(1 + len(nodes) * n_lanes // MAX_CELLS, len(nodes))) if len(nodes) else []",
        "len(nodes) * n_lanes // MAX_CELLS -> (len(nodes) * n_lanes * MAX_CELLS)",
        0,
    ): "in how many parts nodes are looked at changes no time",
    (
        "diagnose/whatif/graph.py",
        "return [rows.take(np.flatnonzero(lengths == length)).flat.reshape(-1, length) for length in every]",
        "1 -> 2",
        0,
    ): "numpy takes any negative number for the axis that is left",
    (
        "diagnose/whatif/levels.py",
        "short = n_on[head] < MIN_CHAIN",
        "n_on[head] < MIN_CHAIN -> (n_on[head] <= MIN_CHAIN)",
        0,
    ): "a chain ends when it does, added up at once or level by level",
    (
        "diagnose/whatif/levels.py",
        "n_lanes = shape[0] * shape[1]",
        "shape[0] * shape[1] -> (shape[0] / shape[1])",
        0,
    ): "which of two ways of replaying is taken changes nothing that they find",
    (
        "diagnose/whatif/levels.py",
        "n_lanes = shape[0] * shape[1]",
        "0 -> 1",
        0,
    ): "which of two ways of replaying is taken changes nothing that they find",
    (
        "diagnose/whatif/levels.py",
        "elif level.across_dp and (len(ends) > 2 or (starts[0] != starts[1]).any()):",
        "len(ends) > 2 -> (len(ends) >= 2)",
        0,
    ): "ranks that are alike are told apart a level too early, with the same times",
    (
        "diagnose/whatif/medians.py",
        "TINY_RATIO = 1e-9",
        "1e-9 -> 2e-09",
        0,
    ): "any ratio far below all others will do",
    (
        "diagnose/whatif/medians.py",
        "nearer = np.where(np.abs(first) < np.abs(second), first, second)",
        "np.abs(first) < np.abs(second) -> (np.abs(first) <= np.abs(second))",
        0,
    ): "two values on one side that are as near to 0 are one value",
    (
        "diagnose/whatif/observed.py",
        "recent = recent[sample.held_shares(recent, np.full_like(recent, node)) >= HELD_SHARE]",
        (
            "sample.held_shares(recent, np.full_like(recent, node)) >= HELD_SHARE "
            "-> (sample.held_shares(recent, np.full_like(recent, node)) > HELD_SHARE)"
        ),
        0,
    ): "another answer only where a wait holds in just `HELD_SHARE` of the lanes",
    (
        "diagnose/whatif/observed.py",
        "return pairs[of_types(self.block.nodes.op[pairs[:, 0]], P2P)]",
        "0 -> 1",
        0,
    ): "both ends of a pair are of such types",
    (
        "diagnose/whatif/observed.py",
        "seen.add(before)",
        "seen.add(before) -> pass",
        0,
    ): "a node is looked at again, with the same result: places only fall",
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
        "diagnose/whatif/overlaps.py",
        "MAX_LANES = 64",
        "64 -> 65",
        0,
    ): "a bound of cost: as many lanes, but one",
    (
        "diagnose/whatif/recorded.py",
        "here[self.computes[self.computes >= 0]] = True",
        "self.computes >= 0 -> (self.computes > 0)",
        0,
    ): "the first node is a first forward, which waits for no send",
    (
        "diagnose/whatif/recorded.py",
        "moves[self.moves[self.moves >= 0]] = True",
        "self.moves >= 0 -> (self.moves > 0)",
        1,
    ): "the first node is a compute, and no transfer",
    (
        "diagnose/whatif/replay.py",
        "elif event.across_dp and (starts[2] is not starts[0] or starts[0].size > 1 or starts[0] != starts[1]):",
        "0 -> 1",
        2,
    ): "where own times have one lane alone, what a rank does among peers is not used",
    (
        "diagnose/whatif/replay.py",
        "with ThreadPoolExecutor(max_workers=min(MAX_THREADS, os.cpu_count() or 1)) as pool:",
        "os.cpu_count() or 1 -> (os.cpu_count() and 1)",
        0,
    ): "how many threads replay does not change what they find",
    (
        "diagnose/whatif/replay.py",
        "delay[delay < CLOCK_ERROR_S] = 0.0",
        "delay < CLOCK_ERROR_S -> (delay <= CLOCK_ERROR_S)",
        0,
    ): "another answer only where a delay is just so long, to the last bit",
    (
        "diagnose/whatif/rewrite.py",
        "pairs = np.concatenate([np.stack([send[send >= 0], recv[send >= 0]], axis=1) for send, recv in sends])",
        "send >= 0 -> (send > 0)",
        1,
    ): "the first node is a compute, and no transfer",
    (
        "diagnose/whatif/rewrite.py",
        "return node if node >= 0 else None",
        "node >= 0 -> (node > 0)",
        0,
    ): "the first node is a compute, and no transfer",
    (
        "diagnose/whatif/rewrite.py",
        "self._wait(np.r_[-1, computes[at[:-1]]], received[at])",
        "1 -> 2",
        0,
    ): "whatever is below 0 is nothing",
    (
        "diagnose/whatif/rewrite.py",
        "self.computes = np.full((len(COMPUTES), *shape), -1)",
        "1 -> 2",
        0,
    ): "whatever is below 0 is nothing",
    (
        "diagnose/whatif/rewrite.py",
        "last = {k: nodes[kind[there] == k][-1:].tolist() for k in range(len(MOVES))}",
        "1 -> 2",
        0,
    ): "of several the last one is kept all the same",
    (
        "diagnose/whatif/scenarios.py",
        "if not (ideal_s > 0).all():",
        "ideal_s > 0 -> (ideal_s >= 0)",
        0,
    ): "another answer only where a step takes just nothing: computes that take no time are left out before",
    (
        "diagnose/whatif/scenarios.py",
        "return np.broadcast_to(lasting, (len(each) * len(p.block.steps), 1)).reshape(len(each), -1).T",
        "1 -> 2",
        1,
    ): "numpy takes any negative number for the axis that is left",
    (
        "diagnose/whatif/scenarios.py",
        "lanes = block.start_s.reshape(len(block.nodes), -1)",
        "1 -> 2",
        0,
    ): "numpy takes any negative number for the axis that is left",
    (
        "diagnose/whatif/schedule.py",
        "r, found, sends = self.recorded, [], [kind in SENDS for kind in MOVES]",
        "kind in SENDS -> (kind not in SENDS)",
        0,
    ): "only whether two types are alike in it is asked",
    (
        "diagnose/whatif/slow_places.py",
        "recv_of = np.full(len(o.block.nodes), -1)",
        "1 -> 2",
        0,
    ): "whatever is below 0 is no recv",
    (
        "diagnose/whatif/slow_places.py",
        "ways, groups = ways_s > least, groups_s > least",
        "ways_s > least -> (ways_s >= least)",
        0,
    ): "another answer only where a place loses just so much, to the last bit; where none loses anything none is above its equals",
    (
        "diagnose/whatif/slow_places.py",
        "ways_s, groups_s = lost.ways[..., seen_in].sum(axis=-1), lost.groups[:, seen_in].sum(axis=-1)",
        "-1 -> (1)",
        1,
    ): "of two axes the second is the last",
    (
        "diagnose/whatif/stalls.py",
        "gaps = np.flatnonzero(lengths[:-1] > APART_RATIO * lengths[1:])",
        "lengths[:-1] > APART_RATIO * lengths[1:] -> (lengths[:-1] >= APART_RATIO * lengths[1:])",
        0,
    ): "another answer only where one length is just so many times the other, to the last bit",
    (
        "diagnose/whatif/starts.py",
        "later = ends_s > self.ends_s[step]",
        "ends_s > self.ends_s[step] -> (ends_s >= self.ends_s[step])",
        0,
    ): "of rows that end at once either may be told",
    (
        "diagnose/whatif/token_costs.py",
        "x = np.stack([column / column[there].mean() - 1.0 for column in columns])",
        "1.0 -> 2.0",
        0,
    ): "what all microbatches of a step share is taken off later",
}
