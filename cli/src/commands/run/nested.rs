//! [`Held`]: a hold of an outer `lockctl run`.
//!
//! Sharing a named owner would not work: a process that acquires under the owner of another one
//! takes over its hold, and the outer run would be told that it has lost the lock. So a nested run
//! acquires nothing, and becomes the command instead. That is safe because of three facts. The
//! outer run names its hold in the environment, by an owner that no other process ever has. The
//! store confirms that this owner holds the name. And the nested command is in the process group of
//! the outer one, or, if a run of another name lies between, in that one's. The outer run holds the
//! lock until its group is gone, and on Linux until all groups of its session are that descend from
//! it, also if the run between is killed.

use std::{env, process::Command};

use lockcore::{Lock, LockGuard, Mode};
use serde::{Deserialize, Serialize};

use super::Kind;
use crate::{
    exit::{Exit, Failure},
    process,
};

/// The variable with everything that outer runs hold, the outermost first.
const HELD: &str = "LOCKCTL_HELD";

/// A hold of an outer `lockctl run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    name: String,
    owner: String,
    token: u64,
    kind: HeldKind,
    /// The process that holds it.
    pid: u32,
}

/// The kind of a hold, which decides what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HeldKind {
    Lock,
    Read,
    Write,
    Permits,
}

impl HeldKind {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Plain | Kind::Fair => Self::Lock,
            Kind::Read => Self::Read,
            Kind::Write => Self::Write,
            Kind::Permits => Self::Permits,
        }
    }

    /// Returns `true` if a holder of this may enter as `wanted`. A writer may read, and each
    /// acquisition of permits takes its own.
    fn covers(self, wanted: Self) -> bool {
        matches!(
            (self, wanted),
            (Self::Lock, Self::Lock)
                | (Self::Read | Self::Write, Self::Read)
                | (Self::Write, Self::Write)
        )
    }

    fn is_of(self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive | Mode::Fair => self == Self::Lock,
            Mode::Read => self == Self::Read,
            Mode::Write => self == Self::Write,
            _ => false,
        }
    }
}

impl Held {
    pub(super) fn new(guard: &LockGuard, kind: Kind) -> Self {
        Self {
            name: guard.name().to_owned(),
            owner: guard.wire_owner().to_owned(),
            token: guard.token().into(),
            kind: HeldKind::new(kind),
            pid: std::process::id(),
        }
    }

    /// The innermost hold of the environment that covers `kind` of `name`. A reader that asks to
    /// write would wait for itself, and is refused.
    pub(super) fn covering(name: &str, kind: Kind) -> Result<Option<Self>, Failure> {
        Self::covering_of(inherited(), name, HeldKind::new(kind))
    }

    fn covering_of(all: Vec<Self>, name: &str, wanted: HeldKind) -> Result<Option<Self>, Failure> {
        let mut of_name: Vec<Self> = all
            .into_iter()
            .filter(|held| held.name == name && process::is_below(held.pid.cast_signed()))
            .collect();
        if let Some(at) = of_name.iter().rposition(|held| held.kind.covers(wanted)) {
            return Ok(Some(of_name.swap_remove(at)));
        }
        if wanted == HeldKind::Write && of_name.iter().any(|held| held.kind == HeldKind::Read) {
            return Err(Failure::usage(format!(
                "an outer lockctl run holds {name} with -s, and a reader cannot become a writer; \
                 give the outer one -x"
            )));
        }
        Ok(None)
    }

    /// Asks the store whether this hold is still there. It has ended if this process was left
    /// behind, with its environment, by a command that has ended.
    pub(super) async fn is_there(&self, lock: &Lock) -> Result<bool, Failure> {
        let state = lock.state().await?;
        let mut holders = state.holders().iter();
        Ok(holders.any(|holder| holder.owner() == self.owner && self.kind.is_of(holder.mode())))
    }

    /// Describes this hold, and those that surround it, in the environment of `command`.
    pub(super) fn describe(&self, command: &mut Command) -> Result<(), Failure> {
        let mut all = inherited();
        if !all.contains(self) {
            all.push(self.clone());
        }
        let all = serde_json::to_string(&all)
            .map_err(|error| Failure::new(Exit::UNAVAILABLE, format!("no JSON: {error}")))?;
        command
            .env("LOCKCTL_NAME", &self.name)
            .env("LOCKCTL_OWNER", &self.owner)
            .env("LOCKCTL_TOKEN", self.token.to_string())
            .env(HELD, all);
        Ok(())
    }
}

/// Returns `true` inside an outer run. That may have been killed, in which case its guard is about
/// to kill its group, and this process with it.
pub(super) fn is_inside() -> bool {
    !inherited().is_empty()
}

/// Reads the environment. If this version did not write it, nothing is known to be held.
fn inherited() -> Vec<Held> {
    let value = env::var(HELD).unwrap_or_default();
    serde_json::from_str(&value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(name: &str, kind: HeldKind) -> Held {
        let pid = std::os::unix::process::parent_id();
        Held { name: name.into(), owner: "o".into(), token: 1, kind, pid }
    }

    #[test]
    fn a_hold_covers_what_its_owner_could_nest() {
        use HeldKind::{Lock, Permits, Read, Write};
        let enters = |kind, wanted| {
            let all = vec![held("a", kind), held("b", Lock)];
            Held::covering_of(all, "a", wanted).map(|held| held.is_some())
        };
        for (kind, wanted) in [(Lock, Lock), (Read, Read), (Write, Read), (Write, Write)] {
            assert!(enters(kind, wanted).unwrap(), "{kind:?} {wanted:?}");
        }
        for (kind, wanted) in [(Lock, Write), (Write, Lock), (Permits, Permits), (Lock, Permits)] {
            assert!(!enters(kind, wanted).unwrap(), "{kind:?} {wanted:?}");
        }
        assert_eq!(enters(Read, Write).unwrap_err().exit, Exit::USAGE);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_stranger_does_not_enter_with_a_copied_environment() {
        let mut stranger = held("a", HeldKind::Lock);
        stranger.pid = std::process::id();
        assert!(Held::covering_of(vec![stranger], "a", HeldKind::Lock).unwrap().is_none());
    }
}
