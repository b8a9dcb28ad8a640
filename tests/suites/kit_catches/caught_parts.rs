//! The cases that catch each flaw in the parts of the contract.

use lockcore_testkit::Part;

use super::{caught::Flaws, flaw::Flaw};

const DECLARATION: &str = "the_declared_parts_are_those_that_are_named";

/// All refusals of what a request can ask for.
const REFUSALS: &[&str] = &[
    "undeclared_fair_locks_are_refused",
    "undeclared_read_write_locks_are_refused",
    "undeclared_permits_are_refused",
    "undeclared_grants_of_several_tokens_are_refused",
    "undeclared_proposals_of_tokens_are_refused",
];

pub(crate) const PARTS: &[(&str, Flaws)] = &[("C16", C16)];

const C16: Flaws = &[
    (Flaw::IsNotNamed(Part::Fair), &[DECLARATION, "undeclared_fair_locks_are_refused"]),
    (Flaw::IsNotNamed(Part::ReadWrite), &[DECLARATION, "undeclared_read_write_locks_are_refused"]),
    (Flaw::IsNotNamed(Part::Permits), &[DECLARATION, "undeclared_permits_are_refused"]),
    (
        Flaw::IsNotNamed(Part::HandOver),
        &[DECLARATION, "undeclared_grants_of_several_tokens_are_refused"],
    ),
    (Flaw::IsNotNamed(Part::Demand), &[DECLARATION, "undeclared_demand_is_refused"]),
    (Flaw::IsNotNamed(Part::DirectGrant), &[DECLARATION]),
    (
        Flaw::IsNotNamed(Part::ProposedTokens),
        &[DECLARATION, "undeclared_proposals_of_tokens_are_refused"],
    ),
    (Flaw::IsNotNamed(Part::Latches), &[DECLARATION, "undeclared_latches_are_refused"]),
    (Flaw::IsNotNamed(Part::Conditions), &[DECLARATION, "undeclared_conditions_are_refused"]),
    (Flaw::IsNotNamed(Part::Directory), &[DECLARATION, "an_undeclared_directory_is_refused"]),
    (Flaw::IsNotDeclared(Part::Fair), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::ReadWrite), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::Permits), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::HandOver), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::Demand), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::DirectGrant), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::ProposedTokens), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::Latches), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::Conditions), &[DECLARATION]),
    (Flaw::IsNotDeclared(Part::Directory), &[DECLARATION]),
    (Flaw::GrantsUndeclared(Part::Fair), &["undeclared_fair_locks_are_refused"]),
    (Flaw::GrantsUndeclared(Part::ReadWrite), &["undeclared_read_write_locks_are_refused"]),
    (Flaw::GrantsUndeclared(Part::Permits), &["undeclared_permits_are_refused"]),
    (Flaw::GrantsUndeclared(Part::HandOver), &["undeclared_grants_of_several_tokens_are_refused"]),
    (Flaw::GrantsUndeclared(Part::Demand), &["undeclared_demand_is_refused"]),
    (Flaw::GrantsUndeclared(Part::ProposedTokens), &["undeclared_proposals_of_tokens_are_refused"]),
    (Flaw::ResizesUndeclared, &["undeclared_permits_are_refused"]),
    (Flaw::CallsTheUndeclaredHeld, REFUSALS),
    (Flaw::CallsTheUndeclaredAnotherError, REFUSALS),
    (Flaw::TakesTheUndeclaredAndFails, REFUSALS),
    (Flaw::DeclaresNothing, &[DECLARATION, "exclusive_locks_are_declared_and_granted"]),
    (
        Flaw::DeclaresWhatItRefuses,
        &["a_declared_mode_is_granted", "no_more_permits_are_held_than_there_are"],
    ),
    (Flaw::DeclaresOnOneClientOnly(Part::ReadWrite), &["all_clients_declare_the_same"]),
    (Flaw::DeclaresOnOneClientOnly(Part::Latches), &["all_clients_declare_the_same"]),
    (Flaw::DeclaresOnOneClientOnly(Part::Conditions), &["all_clients_declare_the_same"]),
    (Flaw::DeclaresOnOneClientOnly(Part::Directory), &["all_clients_declare_the_same"]),
];
