//! A report as a markdown page, for people.

use super::ratio::{Ratio, Summary};
use super::{Findings, Timed, Validated};
use crate::bench_row::Row;
use crate::table::{error, percent, time};
use std::collections::BTreeMap;
use std::time::Duration;

/// Rows of the temperature table.
const MOMENTS: usize = 20;

/// The page.
pub(super) fn markdown(findings: &Findings) -> String {
    let mut page = String::new();
    head(&mut page, findings);
    if let Some(validated) = &findings.validate {
        checks(&mut page, validated);
    }
    if let Some(modelled) = &findings.model {
        page += &format!("\n## Model\n\n{}\n", modelled.line());
    }
    if let Some(probes) = &findings.probes {
        page += &probes.markdown();
    }
    heat(&mut page, findings);
    if let Some(timed) = &findings.bench {
        times(&mut page, timed, findings);
    }
    page
}

fn head(page: &mut String, findings: &Findings) {
    let environment = &findings.environment;
    let name = environment.gpu.as_ref().map_or("a GPU", |gpu| gpu.name.as_str());
    *page += &format!("# Report of {name}\n\n");
    *page += &format!("* {}\n", environment.line());
    if let Some(gpu) = &environment.gpu {
        *page += &format!(
            "* memory clock {} MHz, bus of {} bits, L2 of {} KiB, watchdog {}\n",
            gpu.memory_clock_mhz,
            gpu.memory_bus_bits,
            gpu.l2_bytes >> 10,
            if gpu.watchdog { "on" } else { "off" }
        );
    }
    let commit = environment.commit.map_or_else(String::new, |commit| format!(" of {commit}"));
    *page += &format!(
        "* host: {} {}, {}\n* pascaline {}{commit}\n* {:.0} s{}\n",
        environment.os,
        environment.arch,
        environment.cpu.line(),
        environment.pascaline,
        findings.seconds_taken,
        if findings.interrupted { ", interrupted" } else { "" }
    );
}

fn checks(page: &mut String, validated: &Validated) {
    let Validated { passed, cases_not_run, cases } = validated;
    let verdict = if *passed { "all right" } else { "WRONG RESULTS" };
    *page += &format!("\n## Checks: {} cases, {verdict}", cases.len());
    if *cases_not_run > 0 {
        *page += &format!("; {cases_not_run} not run for lack of time");
    }
    page.push_str("\n\n| op | cases | failed | worst error | of tolerance |\n|---|---|---|---|---|\n");
    let mut ops: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for case in cases {
        ops.entry(crate::bench_row::prefix(&case.id)).or_default().push(case);
    }
    for (op, cases) in ops {
        let failed = cases.iter().filter(|case| !case.passed).count();
        let share = |share: Option<f64>| share.unwrap_or(f64::INFINITY);
        let worst = cases.iter().max_by(|a, b| share(a.worst_share).total_cmp(&share(b.worst_share)));
        *page += &format!(
            "| {op} | {} | {failed} | {} | {} |\n",
            cases.len(),
            worst.and_then(|case| case.max_error).map_or_else(String::new, error),
            worst.and_then(|case| case.worst_share).map_or_else(String::new, percent),
        );
    }
    for case in cases.iter().filter(|case| !case.passed) {
        *page += &format!("\n* `{}`: {}", case.id, case.message.as_deref().unwrap_or("wrong"));
    }
}

fn heat(page: &mut String, findings: &Findings) {
    let Some(seen) = &findings.temperatures else { return };
    page.push_str("\n## Temperature, clock and power\n\n");
    if let Some(message) = &seen.message {
        *page += &format!("{message}\n");
    }
    if let Some(limit) = seen.power_limit {
        *page += &format!("Power limit {limit:.0} W");
        let slowdown = seen.slowdown.map(|slowdown| format!(", slows itself down at {slowdown:.0} °C"));
        *page += &format!("{}.\n\n", slowdown.unwrap_or_default());
    }
    if seen.samples.is_empty() {
        return;
    }
    page.push_str("| s | °C | MHz | W | slowed down by |\n|---|---|---|---|---|\n");
    for sample in seen.samples.iter().step_by(seen.samples.len().div_ceil(MOMENTS)) {
        let why = match (sample.slowed_by_heat, sample.slowed_by_power) {
            (true, _) => "heat",
            (_, true) => "power",
            _ => "",
        };
        let super::watch::Sample { seconds, celsius, clock_mhz, watts, .. } = sample;
        *page += &format!("| {seconds:.0} | {celsius:.0} | {clock_mhz} | {watts:.0} | {why} |\n");
    }
}

fn times(page: &mut String, timed: &Timed, findings: &Findings) {
    let estimates = findings.estimates.iter().flat_map(|estimated| &estimated.cases);
    let estimates: BTreeMap<_, _> = estimates.map(|estimate| (estimate.id.as_str(), estimate)).collect();
    let of_row = |row: &Row| {
        let estimate = estimates.get(row.id.as_str())?;
        Ratio::new(estimate, row.median_ms?, row.variant.as_deref())
    };
    let ratios: Vec<_> = timed.cases.iter().filter_map(of_row).collect();
    *page += &format!("\n## Times of {} cases, next to estimates for this card\n\n", timed.cases.len());
    let ceilings = &timed.ceilings;
    for ceiling in
        [&ceilings.launch, &ceilings.memory, &ceilings.compute, &ceilings.dp4a].into_iter().flatten()
    {
        let rate = match ceiling.name {
            "launch" => String::new(),
            _ => format!("{:.1} {}: ", ceiling.per_second / 1e9, crate::bench_row::unit(ceiling.name)),
        };
        *page += &format!("* {}: {rate}{}\n", ceiling.name, ceiling.what);
    }
    if let Some(sustained) = &timed.sustained {
        *page += &format!("* sustained: {sustained}\n");
    }
    if timed.cases_not_run > 0 {
        *page += &format!("* {} not run for lack of time\n", timed.cases_not_run);
    }
    for message in [&timed.left_out_rule, &timed.message].into_iter().flatten() {
        *page += &format!("* {message}\n");
    }
    page.push_str("\nRatios are measured over estimated time.\n\n| estimates from | cases | mean | worst | which is |\n|---|---|---|---|---|\n");
    for group in Summary::by_group(&ratios) {
        let Summary { cases, geometric_mean, worst, worst_ratio, .. } = &group;
        let title = group.title();
        *page += &format!("| {title} | {cases} | {geometric_mean:.2} | {worst_ratio:.2} | {worst} |\n");
    }
    page.push_str("\n| case | median | estimate | ratio | from | limited by | of ceiling | kernel |\n|---|---|---|---|---|---|---|---|\n");
    let mut rows: Vec<_> = timed.cases.iter().collect();
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    for row in rows {
        let cells = match of_row(row) {
            Some(Ratio { estimated_seconds, ratio, by, bound, .. }) => {
                let estimated = time(Duration::from_secs_f64(estimated_seconds));
                format!("{estimated} | {ratio:.2} | {} | {bound}", by.name())
            }
            None => " | | | ".to_owned(),
        };
        let median = match row.median_ms {
            Some(ms) => time(Duration::from_secs_f64(ms / 1e3)),
            None => format!("{}: {}", row.status, row.message.as_deref().unwrap_or_default()),
        };
        let share = row.percent.map_or_else(String::new, |share| percent(share / 100.0));
        *page += &format!(
            "| {} | {median} | {cells} | {share} | {} |\n",
            row.id,
            row.variant.as_deref().unwrap_or_default()
        );
    }
}
