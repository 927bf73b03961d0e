"""Which tests belong to which tier: a table by folder, file, and where a file mixes tiers, by test.

quick   generates no job, starts no process, browser or database; a minute at most, all together
(plain) everything that is not long: what a change must pass before it is shown to others
long    full sweeps over many jobs, browsers, databases, kills, torch jobs: `--all`

An entry is the beginning of a test's id; the longest that fits decides, and a test that no entry fits is plain.
"""

QUICK, PLAIN, LONG = "quick", "plain", "long"

TIERS = {
    # by folder
    "diagnose/": QUICK,
    "tests/compare/": QUICK,
    "tests/features/": QUICK,
    "tests/judge/": QUICK,
    "tests/model/": QUICK,
    "tests/report/": QUICK,
    "tests/trace/": QUICK,
    "tests/whatif/": QUICK,
    # by file, and by test
    "tests/faults/test_communication.py::test_nobody_waits_in_a_circle": LONG,
    "tests/faults/test_corpus.py::test_same_bytes_whatever_the_number_of_processes": LONG,
    "tests/faults/test_corpus.py::test_shapes_are_found_for_causes": LONG,
    "tests/faults/test_pauses.py::test_drawn_faults_vary": LONG,
    "tests/faults/test_score.py::test_the_number_of_processes_changes_nothing": LONG,
    "tests/features/test_catalogue.py::test_the_catalogue_lists": PLAIN,
    "tests/features/test_hosts.py": PLAIN,
    "tests/features/test_sequences.py": PLAIN,
    "tests/fixes/test_rebalance_sequences.py::test_predicted_speedups_come_true": LONG,
    "tests/fixes/test_rebalance_sequences.py::test_predicted_speedups_come_true[documents-alone]": PLAIN,
    "tests/fixes/test_repartition_stages.py::test_speedups_are_those_of_truly_moving_layers": LONG,
    "tests/fixes/test_shard_context.py::test_every_way_comes_true": LONG,
    "tests/judge/test_classifier.py": PLAIN,
    "tests/judge/test_classifier.py::test_no_damage_hangs_or_crashes": LONG,
    "tests/judge/test_explain.py": PLAIN,
    "tests/judge/test_rules.py::test_a_misspelt_feature_is_refused_with_a_suggestion": PLAIN,
    "tests/judge/test_rules.py::test_a_users_rule_judges_jobs": PLAIN,
    "tests/judge/test_rules.py::test_each_rule_speaks_of_features_that_a_job_has": PLAIN,
    "tests/judge/test_rules.py::test_no_file_hangs_or_kills_the_reader": PLAIN,
    "tests/judge/test_verdict.py": PLAIN,
    "tests/packing/test_pack_cli.py::test_exact": LONG,
    "tests/packing/test_packers.py::test_exact_as_published": LONG,
    "tests/record/test_recorder.py::test_nobody_closes_it": LONG,
    "tests/record/test_recorder.py::test_what_stops_the_host": LONG,
    "tests/record/test_torch_jobs.py": LONG,
    "tests/report/test_html.py": PLAIN,
    "tests/report/test_html_browser.py": LONG,
    "tests/report/test_perfetto.py": PLAIN,
    "tests/report/test_perfetto.py::test_random_jobs": LONG,
    "tests/report/test_perfetto.py::test_what_does_not_fit_is_left_out_and_told": LONG,
    "tests/report/test_site_browser.py": LONG,
    "tests/test_acceptance.py::test_a_hundred_healthy_jobs": LONG,
    "tests/test_causes.py": LONG,
    "tests/test_damage_end_to_end.py": LONG,
    "tests/test_fleet_cli.py::test_a_writer_that_dies": LONG,
    "tests/test_fleet_cli.py::test_pages_drawn_from_traces": LONG,
    "tests/test_fleet_cli.py::test_same_on_postgresql": LONG,
    "tests/test_fuzz.py": LONG,
    "tests/test_imports.py": QUICK,
    "tests/test_pipeline.py::test_what_holds_for_every_diagnosis": LONG,
    "tests/test_pipeline.py::test_what_holds_for_every_diagnosis[range(0, 4)": PLAIN,
    "tests/test_tiers.py": QUICK,
    "tests/test_traps.py": LONG,
    "tests/tickets/test_findings.py::test_many_findings_at_once": LONG,
    "tests/tickets/test_tickets_cli.py::test_a_night_end_to_end": LONG,
    "tests/tickets/test_webhook.py::test_killed_between_the_post_and_the_mark": LONG,
    "tests/tickets/test_webhook.py::test_kills": LONG,
    "tests/tickets/test_webhook.py::test_two_at_once_do_not_double": LONG,
    "tests/trace/producers/test_damage.py": LONG,
    "tests/trace/producers/test_event_timer.py": PLAIN,
    "tests/trace/producers/test_fuzz_logs.py": LONG,
    "tests/trace/producers/test_kineto.py": PLAIN,
    "tests/trace/producers/test_kineto_torch.py": LONG,
    "tests/trace/producers/test_megascan.py": PLAIN,
    "tests/trace/producers/test_megascan.py::test_another_long_chunk_is_named": LONG,
    "tests/trace/producers/test_megascan.py::test_the_long_chunk_of_the_example_is_named": LONG,
    "tests/trace/producers/test_megatron_log.py::test_memory_is_bounded": LONG,
    "tests/trace/producers/test_ndtimeline.py": PLAIN,
    "tests/trace/producers/test_primus.py": PLAIN,
    "tests/trace/producers/test_torchtitan.py": PLAIN,
    "tests/trace/test_damage.py": PLAIN,
    "tests/trace/test_documents.py::test_generated_jobs_record_what_they_drew": PLAIN,
    "tests/trace/test_documents.py::test_steps_before_the_fault_have_no_lists": PLAIN,
    "tests/trace/test_load.py::test_a_unit_of_time_changes_no_ratio": PLAIN,
    "tests/trace/test_load.py::test_renaming_dp_ranks_only_renames": PLAIN,
    "tests/trace/test_members.py::test_clocks_that_drift": PLAIN,
    "tests/trace/test_members.py::test_the_group_is_its_first_start_and_last_end": PLAIN,
    "tests/trace/test_read.py": PLAIN,
    "tests/trace/test_restart.py": PLAIN,
    "tests/triage/test_processes.py": LONG,
    "tests/triage/test_s3.py": LONG,
    "tests/triage/test_triage_cli.py::test_progress_on_a_terminal": LONG,
    "tests/whatif/components/test_catalogue.py": PLAIN,
    "tests/whatif/test_between.py": PLAIN,
    "tests/whatif/test_clocks.py": PLAIN,
    "tests/whatif/test_clocks.py::test_clocks_change_neither_verdict_nor_gains": LONG,
    "tests/whatif/test_clocks.py::test_clocks_change_neither_verdict_nor_gains[blocking-": PLAIN,
    "tests/whatif/test_clocks.py::test_no_offset_is_claimed_in_generated_jobs": LONG,
    "tests/whatif/test_clocks.py::test_no_offset_is_claimed_in_real_jobs": LONG,
    "tests/whatif/test_components.py": PLAIN,
    "tests/whatif/test_components.py::test_predicted_gains_are_true": LONG,
    "tests/whatif/test_components.py::test_two_faults_share_the_lost_time_as_they_truly_do": LONG,
    "tests/whatif/test_contention.py": PLAIN,
    "tests/whatif/test_contention.py::test_overlap_that_holds_nobody_up_is_no_contention": LONG,
    "tests/whatif/test_contention.py::test_unevenness_is_no_contention": LONG,
    "tests/whatif/test_fill.py::test_a_lost_member_of_a_batch_has_the_times_of_the_batch": PLAIN,
    "tests/whatif/test_naive.py": PLAIN,
    "tests/whatif/test_observed.py": PLAIN,
    "tests/whatif/test_observed.py::test_batches_are_found_where_calls_block": LONG,
    "tests/whatif/test_observed.py::test_generated_jobs": LONG,
    "tests/whatif/test_observed.py::test_random_slow_workers_beside_hidden_waits": LONG,
    "tests/whatif/test_removal.py": PLAIN,
    "tests/whatif/test_schedule.py::test_generated_jobs_stay_the_same": LONG,
    "tests/whatif/test_schedule.py::test_speedups_are_those_of_truly_running_so": LONG,
    "tests/whatif/test_stalls.py": PLAIN,
    "tests/whatif/test_transfers.py": PLAIN,
}


def tier_of(node_id: str) -> str:
    """Name the tier of a test."""
    return TIERS.get(max((entry for entry in TIERS if node_id.startswith(entry)), key=len, default=""), PLAIN)


def tiers_within(path: str) -> set[str]:
    """Name all tiers that tests of a file may belong to."""
    return {tier_of(path)} | {tier for entry, tier in TIERS.items() if entry.startswith(path + "::")}
