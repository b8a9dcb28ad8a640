//! The list of cases, and two things generated from it: tests, and values to run in other ways.

mod generate;
mod list;
mod list_of_faults;
mod list_of_parts;
mod part;

use std::{fmt, future::Future, pin::Pin};

pub use self::part::Part;
use crate::{Crashes, Fixture, Interrupts, Withholds, conformance};

/// A case that is running.
type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One case, as a value.
pub struct Case<F> {
    subject: &'static str,
    name: &'static str,
    clause: &'static str,
    /// The parts named when it was listed.
    named: Vec<Part>,
    run: for<'a> fn(&'a F, Vec<Part>) -> Running<'a>,
}

impl<F: Fixture> Case<F> {
    /// The module that contains the case.
    #[must_use]
    pub fn subject(&self) -> &'static str {
        self.subject
    }

    /// The name of the case, a statement of what it shows.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The main clause of the contract that the case tests: `C1` to `C47`.
    #[must_use]
    pub fn clause(&self) -> &'static str {
        self.clause
    }

    /// Runs the case. It panics if the backend violates the clause.
    pub fn run<'a>(&self, fixture: &'a F) -> impl Future<Output = ()> + use<'a, F> {
        (self.run)(fixture, self.named.clone())
    }
}

impl<F> fmt::Debug for Case<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}::{}", self.clause, self.subject, self.name)
    }
}

/// Returns `true` if a case is for a backend with the parts `$named`.
macro_rules! is_met {
    ([exclusive] $named:ident) => {
        true
    };
    ([not $part:ident] $named:ident) => {
        !$named.contains(&crate::part!($part))
    };
    ([$($part:ident) or +] $named:ident) => {
        crate::parts!([$($part)+]).iter().any(|part| $named.contains(part))
    };
}

macro_rules! values {
    (
        [$all:ident $named:ident]
        $($subject:ident $([$($needs:ident)+] { $($clause:ident $case:ident)* })+)*
    ) => {
        $($(if is_met!([$($needs)+] $named) {
            $($all.push(Case {
                subject: stringify!($subject),
                name: stringify!($case),
                clause: stringify!($clause),
                named: $named.to_vec(),
                run: |fixture, _| Box::pin(crate::conformance::$subject::$case(fixture)),
            });)*
        })+)*
    };
}

/// The cases for a backend that has exclusive locks and the parts `named`, to run them in another
/// way than with [`conformance_tests!`](crate::conformance_tests). The cases are the same.
///
/// # Examples
/// ```
/// # use lockcore::LockName;
/// # use lockcore_memory::MemoryBackend;
/// # use lockcore_testkit::Fixture;
/// # struct MemoryFixture(MemoryBackend);
/// # impl Fixture for MemoryFixture {
/// #     type Backend = MemoryBackend;
/// #     async fn set_up() -> Self { Self(MemoryBackend::new()) }
/// #     async fn client(&self) -> MemoryBackend { self.0.clone() }
/// #     async fn left_behind(&self, _: &LockName) -> Vec<String> { Vec::new() }
/// # }
/// use lockcore_testkit::{Part, cases, run_case_paused};
///
/// let all = cases::<MemoryFixture>(&Part::ALL);
/// for case in all.into_iter().filter(|case| case.clause() == "C4") {
///     println!("{case:?}");
///     run_case_paused(async |fixture| case.run(fixture).await);
/// }
/// ```
#[must_use]
pub fn cases<F: Fixture>(named: &[Part]) -> Vec<Case<F>> {
    let mut all = vec![Case {
        subject: "declaration",
        name: "the_declared_parts_are_those_that_are_named",
        clause: "C16",
        named: named.to_vec(),
        run: |fixture, named| {
            Box::pin(async move {
                conformance::declaration::the_declared_parts_are_those_that_are_named(
                    fixture, &named,
                )
                .await;
            })
        },
    }];
    crate::for_each_case!([values], [all named]);
    all
}

macro_rules! values_with_faults {
    (
        [$all:ident $named:ident $module:ident]
        $([$($needs:ident)+] { $($clause:ident $case:ident)* })+
    ) => {
        $(if is_met!([$($needs)+] $named) {
            $($all.push(Case {
                subject: stringify!($module),
                name: stringify!($case),
                clause: stringify!($clause),
                named: $named.to_vec(),
                run: |fixture, _| Box::pin(crate::$module::$case(fixture)),
            });)*
        })+
    };
}

/// The cases of [`interruption_tests!`](crate::interruption_tests) without `late`.
#[must_use]
pub fn interruption_cases<F: Interrupts>() -> Vec<Case<F>> {
    let (mut all, named) = (Vec::new(), [].as_slice());
    crate::for_each_interruption!([values_with_faults], [all named interruptions]);
    all
}

/// The cases that [`interruption_tests!`](crate::interruption_tests) adds with `late`.
#[must_use]
pub fn late_cases<F: Withholds>() -> Vec<Case<F>> {
    let (mut all, named) = (Vec::new(), [].as_slice());
    crate::for_each_late_request!([values_with_faults], [all named interruptions]);
    all
}

/// The cases of [`crash_tests!`](crate::crash_tests) for a backend with the parts `named`.
#[must_use]
pub fn crash_cases<F: Crashes>(named: &[Part]) -> Vec<Case<F>> {
    let mut all = Vec::new();
    crate::for_each_crash!([values_with_faults], [all named crashes]);
    all
}
