//! C16: the backend declares the parts that it is tested for.

use lockcore::backend::{Backend, Capabilities};

use crate::{Fixture, Part};

/// C16: the backend declares exactly the parts that `conformance_tests!` names.
pub async fn the_declared_parts_are_those_that_are_named<F: Fixture>(fixture: &F, named: &[Part]) {
    let backend = fixture.client().await;
    let mistakes: Vec<_> = Part::ALL
        .into_iter()
        .filter_map(|part| mistake(part, part.is_declared_by(&backend), named.contains(&part)))
        .collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    // The kit has no cases for other capabilities. Replicas are not a part: a fixture whose backend
    // asks for them by itself runs every case with them.
    let known = named.iter().filter_map(|part| part.capability());
    let beyond = Capabilities::EXCLUSIVE | Capabilities::REPLICAS;
    let expected = known.fold(beyond, |all, one| all | one);
    let declared = backend.capabilities() | Capabilities::REPLICAS;
    assert_eq!(declared, expected, "exclusive locks and the named parts");
}

fn mistake(part: Part, is_declared: bool, is_named: bool) -> Option<String> {
    let (word, declaration) = (part.word(), part.declaration());
    match (is_declared, is_named) {
        (true, false) => Some(format!(
            "the backend declares {declaration}, which is not tested: add the word `{word}` to \
             `conformance_tests!`, or declare it no longer"
        )),
        (false, true) => Some(format!(
            "the backend does not declare {declaration}: remove the word `{word}` from \
             `conformance_tests!`, or declare it"
        )),
        _ => None,
    }
}
