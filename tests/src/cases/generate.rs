//! [`conformance_tests!`](crate::conformance_tests), and the macros behind it.

/// Generates the tests that prove a backend: one `#[test]` for each case, in a module for each
/// subject.
///
/// The first argument is the [`Fixture`](crate::Fixture). The words after it, in any order, name
/// the optional parts of the contract that the backend has:
///
/// | word | part | declared with | clauses |
/// |---|---|---|---|
/// | | exclusive locks, always tested | `Capabilities::EXCLUSIVE` | C1 to C17, C47 |
/// | `fair` | fair locks | `Capabilities::FAIR` | C18 to C20 |
/// | `read_write` | read-write locks | `Capabilities::READ_WRITE` | C21 to C25 |
/// | `permits` | semaphores, both kinds of permits | `Capabilities::PERMITS` | C21, C26 to C29 |
/// | `hand_over` | several tokens with one grant | `Capabilities::HAND_OVER` | C37 |
/// | `demand` | the demand for exclusive locks | `Capabilities::DEMAND` | C38 |
/// | `direct_grant` | grants to the first in the queue of a fair lock, beside `fair` | `Capabilities::DIRECT_GRANT` | C39 |
/// | `proposed_tokens` | tokens that several stores agree on | `Capabilities::PROPOSED_TOKENS` | C40 |
/// | `latches` | count-down latches | `Backend::latches` | C21, C30 to C32 |
/// | `conditions` | conditions | `Backend::conditions` | C33 to C36 |
/// | `directory` | the names in use and the records of clients | `Backend::directory` | C41 to C45 |
///
/// One more word, `paused`, is for a store on tokio's clock: the clock is paused, and no test waits
/// in real time.
///
/// Cases of other parts are not generated, so that no test passes without having tested anything.
/// Two modules follow from the words themselves:
///
/// - `declaration` has one test. It fails unless the backend declares exactly the named parts, and
///   says which word to add or to remove.
/// - `refusals` has a test for each part that is not named. It fails unless the backend refuses the
///   part as [`Unsupported`](lockcore::BackendErrorKind::Unsupported), with no effect.
///
/// The tests bring their own runtime, so that the crate around them needs no dependency but this
/// kit. Use the macro once in a module; for a second fixture, make another module.
///
/// # Examples
/// A backend with exclusive locks only is tested by `conformance_tests!(MyFixture)`. This one has
/// fair locks and latches as well, on tokio's clock:
/// ```
/// # use lockcore_memory::MemoryBackend as MyBackend;
/// # use lockcore::LockName;
/// # struct MyFixture(MyBackend);
/// # impl lockcore_testkit::Fixture for MyFixture {
/// #     type Backend = MyBackend;
/// #     async fn set_up() -> Self { Self(MyBackend::new()) }
/// #     async fn client(&self) -> MyBackend { self.0.clone() }
/// #     async fn left_behind(&self, _: &LockName) -> Vec<String> { Vec::new() }
/// # }
/// lockcore_testkit::conformance_tests!(MyFixture, fair, latches, paused);
/// # fn main() {}
/// ```
/// A word that is not in the table does not compile, and the error lists the words:
/// ```compile_fail
/// # use lockcore_memory::MemoryBackend as MyBackend;
/// # use lockcore::LockName;
/// # struct MyFixture(MyBackend);
/// # impl lockcore_testkit::Fixture for MyFixture {
/// #     type Backend = MyBackend;
/// #     async fn set_up() -> Self { Self(MyBackend::new()) }
/// #     async fn client(&self) -> MyBackend { self.0.clone() }
/// #     async fn left_behind(&self, _: &LockName) -> Vec<String> { Vec::new() }
/// # }
/// lockcore_testkit::conformance_tests!(MyFixture, fair, mutexes);
/// # fn main() {}
/// ```
/// See [`Fixture`](crate::Fixture) for how to write one.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:ty $(, $word:ident)* $(,)?) => {
        $crate::conformance_tests_named!($fixture, run_case [] $($word)*);
    };
}

/// Helper of [`conformance_tests!`]: takes `paused` out of the words.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests_named {
    ($fixture:ty, $run:ident [$($part:ident)*]) => {
        type FixtureUnderTest = $fixture;
        const NAMED_PARTS: &[$crate::Part] = &$crate::parts!([$($part)*]);
        $crate::for_each_case!([$crate::conformance_tests_of], [$run [$($part)*]]);
    };
    ($fixture:ty, $run:ident [$($part:ident)*] paused $($words:ident)*) => {
        $crate::conformance_tests_named!($fixture, run_case_paused [$($part)*] $($words)*);
    };
    ($fixture:ty, $run:ident [$($part:ident)*] $word:ident $($words:ident)*) => {
        $crate::conformance_tests_named!($fixture, $run [$($part)* $word] $($words)*);
    };
}

/// Helper of [`conformance_tests!`]: a module for each subject, with the tests of the cases that
/// apply to a backend with the named parts.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests_of {
    (
        [$run:ident $parts:tt]
        $($subject:ident $([$($needs:ident)+] { $($clause:ident $case:ident)* })+)*
    ) => {
        mod declaration {
            #[test]
            fn the_declared_parts_are_those_that_are_named() {
                use $crate::conformance::declaration;
                $crate::$run::<super::FixtureUnderTest>(async |fixture| {
                    let named = super::NAMED_PARTS;
                    declaration::the_declared_parts_are_those_that_are_named(fixture, named)
                        .await;
                });
            }
        }
        $(mod $subject {
            $($crate::if_met!([$($needs)+] $parts {
                $(#[test]
                fn $case() {
                    $crate::$run::<super::FixtureUnderTest>($crate::conformance::$subject::$case);
                })*
            });)+
        })*
    };
}

/// Helper of [`conformance_tests!`]: `$cases` if the named parts meet the needs of the cases.
#[doc(hidden)]
#[macro_export]
macro_rules! if_met {
    ([exclusive] $parts:tt { $($cases:tt)* }) => { $($cases)* };
    ([not $part:ident] $parts:tt $cases:tt) => {
        $crate::if_named! { $part $parts {} $cases }
    };
    ([$part:ident] $parts:tt $cases:tt) => {
        $crate::if_named! { $part $parts $cases {} }
    };
    ([$part:ident or $($others:ident)+] $parts:tt $cases:tt) => {
        $crate::if_named! {
            $part $parts $cases { $crate::if_met! { [$($others)+] $parts $cases } }
        }
    };
}

/// Helper of [`conformance_tests!`]: `$then` if `$part` is among the named parts, else `$else`.
///
/// A macro cannot compare two words, so there is one rule for each.
#[doc(hidden)]
#[macro_export]
macro_rules! if_named {
    (fair [fair $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (read_write [read_write $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (permits [permits $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (hand_over [hand_over $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (demand [demand $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (direct_grant [direct_grant $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (proposed_tokens [proposed_tokens $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (latches [latches $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (conditions [conditions $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    (directory [directory $($more:ident)*] { $($then:tt)* } $else:tt) => { $($then)* };
    ($part:ident [] $then:tt { $($else:tt)* }) => { $($else)* };
    ($part:ident [$other:ident $($more:ident)*] $then:tt $else:tt) => {
        $crate::if_named! { $part [$($more)*] $then $else }
    };
}

#[cfg(test)]
mod tests {
    use crate::{Part, part, parts};

    /// Compares each word with each other word.
    macro_rules! compare {
        ([$($word:ident)*], $all:tt) => {
            $(compare!($word, $all);)*
        };
        ($word:ident, [$($named:ident)*]) => {
            assert_eq!(part!($word).word(), stringify!($word));
            assert!(if_named!($word [$($named)*] { true } { false }), "among the others");
            assert!(!if_named!($word [] { true } { false }), "among none");
            $(
                let is_same = part!($word) == part!($named);
                assert_eq!(if_named!($word [$named] { true } { false }), is_same);
            )*
        };
    }

    #[test]
    fn each_word_is_equal_to_itself_only() {
        compare!(
            [fair read_write permits hand_over demand direct_grant proposed_tokens latches
             conditions directory],
            [fair read_write permits hand_over demand direct_grant proposed_tokens latches
             conditions directory]
        );
        let words = parts!([
            fair read_write permits hand_over demand direct_grant proposed_tokens latches conditions
            directory
        ]);
        assert_eq!(words, Part::ALL);
    }
}
