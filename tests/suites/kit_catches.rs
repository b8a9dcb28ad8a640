//! The kit catches violations of the contract: for each clause there are backends that violate it
//! on purpose.

mod caught;
mod caught_demand;
mod caught_direct_grant;
mod caught_directory;
mod caught_faults;
mod caught_parts;
mod caught_proposals;
mod caught_shared;
mod caught_signals;
mod conditions;
mod crashes;
mod demand;
mod direct_grant;
mod directory;
mod flaw;
mod flawed;
mod interruptions;
mod kinds;
mod latches;
mod listening;
mod parts;
mod permits;
mod pool;
mod proposals;
mod queue;
mod read_write;
mod shared;
mod signals;
mod steps;
mod store;

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
    time::Duration,
};

use lockcore_testkit::{
    Case, Fixture, Part, cases, conformance_tests, crash_cases, crash_tests, interruption_cases,
    interruption_tests, late_cases,
};

use self::{
    caught::{BY_CLAUSE, Flaws, WITH_A_WARM_CLIENT},
    caught_demand::DEMAND,
    caught_direct_grant::DIRECT_GRANT,
    caught_directory::DIRECTORY,
    caught_faults::{FAULTS, SAID},
    caught_parts::PARTS,
    caught_proposals::PROPOSALS,
    caught_shared::SHARED,
    caught_signals::SIGNALS,
    flaw::Flaw,
    flawed::{ExclusiveFixture, FlawedFixture},
};

/// The flawless store passes: the others fail because of their flaw.
mod flawless {
    super::conformance_tests!(
        super::FlawedFixture,
        fair,
        read_write,
        permits,
        hand_over,
        demand,
        direct_grant,
        proposed_tokens,
        latches,
        conditions,
        directory,
        paused,
    );
}

/// So it does when its connections break, and when it crashes.
mod interrupted {
    super::interruption_tests!(super::FlawedFixture, late);
}

mod crashed {
    super::crash_tests!(super::FlawedFixture, permits, direct_grant, proposed_tokens, latches,);
}

/// A flawless store with exclusive locks only passes as well.
mod exclusive_only {
    super::conformance_tests!(super::ExclusiveFixture, paused);
}

/// The cases in which connections break, and those in which the store crashes.
fn cases_with_faults(named: &[Part]) -> Vec<Case<FlawedFixture>> {
    let [interrupted, late] = [interruption_cases(), late_cases()];
    interrupted.into_iter().chain(late).chain(crash_cases(named)).collect()
}

/// The cases of all backends, whatever parts they have.
fn all_cases() -> Vec<Case<FlawedFixture>> {
    let mut all = cases(&Part::ALL);
    let known: BTreeSet<_> = all.iter().map(Case::name).collect();
    let others = cases(&[]).into_iter().filter(|case| !known.contains(case.name()));
    all.extend(others.collect::<Vec<_>>());
    all.extend(cases_with_faults(&Part::ALL));
    all
}

/// The flaws for each clause. A clause may occur twice.
fn by_clause() -> impl Iterator<Item = &'static (&'static str, Flaws)> {
    BY_CLAUSE
        .iter()
        .chain(SHARED)
        .chain(SIGNALS)
        .chain(PARTS)
        .chain(DEMAND)
        .chain(DIRECT_GRANT)
        .chain(PROPOSALS)
        .chain(DIRECTORY)
        .chain(FAULTS)
}

/// The message with which `case` fails for the backend with `flaw`; `None` if it passes.
fn failure(case: &Case<FlawedFixture>, flaw: Flaw) -> Option<String> {
    /// On the paused clock: longer than any lease that a case renews.
    const TIME: Duration = Duration::from_secs(3600);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let fixture = FlawedFixture::new(flaw);
    let run = || {
        runtime.block_on(async { tokio::time::timeout(TIME, case.run(&fixture)).await.unwrap() })
    };
    let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
    Some(message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
}

/// Shows that every flaw in `clause` fails the cases that are named for it, one of which belongs to
/// that clause.
fn is_caught(clause: &str) {
    let flaws: Vec<_> =
        by_clause().filter(|(broken, _)| *broken == clause).flat_map(|(_, flaws)| *flaws).collect();
    assert!(!flaws.is_empty());
    for (flaw, names) in flaws {
        let mut all = cases::<FlawedFixture>(&flaw.named());
        all.extend(cases_with_faults(&flaw.named()));
        let cases: Vec<_> = all.iter().filter(|case| names.contains(&case.name())).collect();
        assert_eq!(cases.len(), names.len(), "each name is that of one case: {names:?}");
        assert!(
            cases.iter().any(|case| case.clause() == clause),
            "{flaw:?}: no case is one of {clause}"
        );
        for case in cases {
            assert!(failure(case, *flaw).is_some(), "{case:?} lets {flaw:?} pass");
        }
    }
}

macro_rules! clauses {
    ($($test:ident $clause:literal)*) => {$(
        #[test]
        fn $test() {
            is_caught($clause);
        }
    )*};
}

clauses! {
    broken_exclusion_is_caught "C1"
    broken_refusals_are_caught "C2"
    broken_leases_are_caught "C3"
    broken_tokens_are_caught "C4"
    broken_repetition_is_caught "C5"
    broken_takeover_is_caught "C6"
    broken_growth_is_caught "C7"
    broken_renewal_is_caught "C8"
    broken_leases_that_shrink_are_caught "C9"
    broken_ownership_is_caught "C10"
    broken_partial_release_is_caught "C11"
    broken_wakeups_are_caught "C12"
    broken_force_is_caught "C13"
    broken_inspection_is_caught "C14"
    broken_names_are_caught "C15"
    broken_capabilities_are_caught "C16"
    broken_cancellation_is_caught "C17"
    broken_order_is_caught "C18"
    broken_lapses_are_caught "C19"
    broken_leaving_is_caught "C20"
    broken_grants_of_several_tokens_are_caught "C37"
    broken_demand_is_caught "C38"
    broken_direct_grants_are_caught "C39"
    broken_proposals_are_caught "C40"
}

clauses! {
    broken_kinds_are_caught "C21"
    broken_sharing_is_caught "C22"
    broken_downgrades_are_caught "C23"
    broken_leases_of_their_own_are_caught "C24"
    broken_precedence_of_writers_is_caught "C25"
    broken_limits_are_caught "C26"
    broken_permits_of_their_own_are_caught "C27"
    broken_answers_for_too_many_are_caught "C28"
    broken_resizing_is_caught "C29"
}

clauses! {
    broken_setting_of_latches_is_caught "C30"
    broken_counting_is_caught "C31"
    broken_wakeups_of_latches_are_caught "C32"
    broken_order_of_conditions_is_caught "C33"
    broken_lapses_of_conditions_are_caught "C34"
    broken_leaving_of_conditions_is_caught "C35"
    broken_wakeups_of_conditions_are_caught "C36"
}

clauses! {
    broken_reports_of_names_are_caught "C41"
    broken_steps_of_walks_are_caught "C42"
    broken_records_are_caught "C43"
    broken_separation_of_records_is_caught "C44"
    broken_looks_at_the_storage_are_caught "C45"
}

clauses! {
    broken_durability_is_caught "C46"
    broken_errors_are_caught "C47"
}

/// The other cases use one connection at a time before they judge the order, so this pool opens no
/// second one.
#[test]
fn only_warm_clients_show_that_a_lazy_pool_keeps_no_order() {
    for case in cases(&Part::ALL).into_iter().chain(cases_with_faults(&Part::ALL)) {
        let failure = failure(&case, Flaw::LendsAnyConnection);
        match case.name() {
            WITH_A_WARM_CLIENT => assert!(failure.unwrap().contains("should have got the lock")),
            _ => assert_eq!(failure, None, "{case:?}"),
        }
    }
}

#[test]
fn cases_with_faults_find_the_flaw_and_nothing_before_it() {
    let flaws: Vec<_> = FAULTS.iter().flat_map(|(_, flaws)| *flaws).map(|(flaw, _)| flaw).collect();
    assert!(flaws.iter().all(|flaw| SAID.iter().any(|(said, ..)| said == *flaw)), "{flaws:?}");
    for (flaw, name, said) in SAID {
        let case = all_cases().into_iter().find(|case| case.name() == *name).unwrap();
        let message = failure(&case, *flaw).unwrap();
        assert!(message.contains(said), "{case:?} says of {flaw:?}: {message}");
    }
}

#[test]
fn a_crash_may_lose_releases() {
    for case in crash_cases(&Part::ALL) {
        assert_eq!(failure(&case, Flaw::CrashLosesReleases), None, "{case:?}");
    }
}

#[test]
fn every_case_catches_something() {
    let caught: BTreeSet<_> = by_clause()
        .flat_map(|(_, flaws)| flaws.iter())
        .flat_map(|(_, names)| names.iter().copied())
        .collect();
    let idle: Vec<_> =
        all_cases().into_iter().filter(|case| !caught.contains(case.name())).collect();
    assert!(idle.is_empty(), "no flaw is there that these cases catch: {idle:#?}");
}

#[test]
fn every_clause_has_cases() {
    let cases = all_cases();
    let clauses: BTreeSet<_> = cases.iter().map(Case::clause).collect();
    let all = 1..=47;
    for number in all.clone() {
        assert!(clauses.contains(&*format!("C{number}")), "C{number} has no case");
    }
    assert_eq!(clauses.len(), all.count(), "{clauses:?}");
}

#[test]
fn every_case_is_in_the_list_with_the_clause_that_its_doc_names() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut written = BTreeSet::new();
    let mut files: Vec<_> =
        ["interruptions.rs", "crashes.rs"].map(|file| sources.join(file)).into();
    let conformance = fs::read_dir(sources.join("conformance")).unwrap();
    files.extend(conformance.map(|file| file.unwrap().path()));
    for path in files {
        let subject = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let source = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = source.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let Some(name) =
                line.strip_prefix("pub async fn ").and_then(|rest| rest.split('<').next())
            else {
                continue;
            };
            let first = lines[..number]
                .iter()
                .rev()
                .take_while(|line| line.starts_with("///"))
                .last()
                .unwrap();
            let clause = first.trim_start_matches("/// ").split([':', ' ']).next().unwrap();
            written.insert(format!("{clause} {subject}::{name}"));
        }
    }
    let listed: BTreeSet<_> = all_cases().iter().map(|case| format!("{case:?}")).collect();
    assert_eq!(listed, written);
}

/// The tests of this binary in the module `module` beside this function, without their path.
fn generated(module: &str) -> BTreeSet<String> {
    let (_, path) = module_path!().split_once("::").unwrap();
    let way = format!("{path}::{module}::");
    let mut tests = Command::new(env::current_exe().unwrap());
    let output = tests.args(["--list", "--format", "terse", &way]).output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    names
        .lines()
        .filter_map(|line| line.strip_prefix(&way)?.strip_suffix(": test"))
        .map(str::to_owned)
        .collect()
}

fn names<F: Fixture>(cases: &[Case<F>]) -> BTreeSet<String> {
    cases.iter().map(|case| format!("{}::{}", case.subject(), case.name())).collect()
}

fn bare_names(cases: impl IntoIterator<Item = Case<FlawedFixture>>) -> BTreeSet<String> {
    cases.into_iter().map(|case| case.name().to_owned()).collect()
}

#[test]
fn the_generated_tests_are_the_cases() {
    let [all, none] = [cases::<FlawedFixture>(&Part::ALL), cases(&[])];
    assert_eq!(generated("flawless"), names(&all));
    assert_eq!(generated("exclusive_only"), names(&none));
    let interrupted = interruption_cases().into_iter().chain(late_cases());
    assert_eq!(generated("interrupted"), bare_names(interrupted));
    assert_eq!(generated("crashed"), bare_names(crash_cases(&Part::ALL)));
}

/// No case needs a part that it is not listed under.
#[test]
fn every_part_stands_alone() {
    const ALONE: [&[Part]; 9] = [
        &[Part::Fair],
        &[Part::ReadWrite],
        &[Part::Permits],
        &[Part::HandOver],
        &[Part::Demand],
        &[Part::ProposedTokens],
        &[Part::Latches],
        &[Part::Conditions],
        &[Part::Directory],
    ];
    /// The parts of fair locks with direct grants.
    const DIRECT_GRANT: &[Part] = &[Part::Fair, Part::DirectGrant];
    assert_eq!(ALONE.len() + 1, Part::ALL.len());
    for parts in ALONE.into_iter().chain([DIRECT_GRANT]) {
        for case in cases(parts).into_iter().chain(cases_with_faults(parts)) {
            let failure = failure(&case, Flaw::HasOnly(parts));
            assert_eq!(failure, None, "{case:?} with {parts:?}");
        }
    }
}

#[test]
fn the_declaration_says_which_word_to_add_or_to_remove() {
    for part in Part::ALL {
        let mistakes = [
            (Flaw::IsNotNamed(part), format!("add the word `{}`", part.word())),
            (Flaw::IsNotDeclared(part), format!("remove the word `{}`", part.word())),
        ];
        for (flaw, advice) in mistakes {
            let cases = cases::<FlawedFixture>(&flaw.named());
            let declaration = cases.iter().find(|case| case.subject() == "declaration").unwrap();
            let message = failure(declaration, flaw).unwrap();
            assert!(message.contains(&advice) && message.lines().count() == 1, "{message}");
        }
    }
}
