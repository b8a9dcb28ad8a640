//! Tokens that clients propose, and how the flaws treat them.

use lockcore::{BackendError, FencingToken, LockName, backend::AcquireRequest};
use lockcore_testkit::Part;

use super::{
    flaw::Flaw,
    parts::unsupported,
    store::{Cell, Flawed},
};

impl Flawed {
    /// The first of the tokens for `request`.
    pub(super) fn tokens_for(&self, request: &AcquireRequest) -> u64 {
        let AcquireRequest { name, hold, tokens, .. } = request;
        let Some(least) = request.least_token.map(u64::from) else {
            return self.next_tokens(name, hold, *tokens);
        };
        let mut store = self.store();
        let last = store.tokens.entry(String::new()).or_default();
        let proposed = least.max(*last + 1);
        match self.flaw {
            Flaw::ProposalIsIgnored => {}
            Flaw::ProposalIsExceeded => *last = proposed,
            Flaw::ProposalGoesBack => return least,
            Flaw::ProposalIsForgotten => return proposed,
            _ => *last = proposed - 1,
        }
        drop(store);
        self.next_tokens(name, hold, *tokens)
    }

    /// Returns `true` if a request takes the lock because of its proposal.
    pub(super) fn takes_by_proposal(&self, request: &AcquireRequest) -> bool {
        self.has(Flaw::ProposalTakesTheLock) && request.least_token.is_some()
    }

    /// Returns `true` if a repetition has another token because of its proposal.
    pub(super) fn renumbers_by_proposal(&self, request: &AcquireRequest) -> bool {
        self.has(Flaw::ProposalRenumbersARepetition) && request.least_token.is_some()
    }

    pub(super) fn raise_now(
        &self,
        name: &LockName,
        token: FencingToken,
    ) -> Result<(), BackendError> {
        let is_undeclared = self.has(Flaw::GrantsUndeclared(Part::ProposedTokens));
        if !self.declares(Part::ProposedTokens) && !is_undeclared {
            return Err(unsupported());
        }
        let mut store = self.store();
        let last = store.tokens.entry(String::new()).or_default();
        let before = *last;
        match self.flaw {
            Flaw::RaisingDoesNothing => {}
            Flaw::RaisingLowers => *last = token.into(),
            _ => *last = (*last).max(token.into()),
        }
        store.before_raise = Some((String::new(), before));
        drop(store);
        self.with(name, |cell: &mut Cell, _| {
            if self.has(Flaw::RaisingEndsTheHold) {
                cell.hold = None;
            }
            cell.sticky |= self.has(Flaw::RaisingKeepsTheName);
        });
        Ok(())
    }
}
