//! The commands, keys and channels that locks need.

use lockcore::{BackendError, BackendErrorKind, Diagnosis, Finding, Severity};
use redis::Cmd;

use super::{Scope, session::Session};
use crate::{cluster::slot_of, error};

const ASKED: &str = include_str!("../scripts/rights.lua");
const TRIED: &str = include_str!("../scripts/rights_tried.lua");

/// A placeholder for the key of the probe, which does not exist.
const KEY: &str = "KEY";

/// The commands that all locks need, and exclusive locks: a problem if one is missing. Each has a
/// form that changes nothing, because the key does not exist or an argument is wrong.
const NEEDED: [&str; 17] = [
    "DEL KEY",
    "EXISTS KEY",
    "GET KEY",
    "HDEL KEY f",
    "HGET KEY f",
    "HGETALL KEY",
    "HMGET KEY f",
    "HSET KEY f v f",
    "PEXPIRE KEY 1000",
    "PTTL KEY",
    "SET KEY v XX",
    "TYPE KEY",
    "ZRANGEBYSCORE KEY 0 1",
    "TIME",
    "PUBLISH redisson_lock__channel:{lockcore_probe} 0",
    "GET redisson_lock_token:{lockcore_probe}",
    "GET lockcore_hold:{lockcore_probe}",
];

/// The commands that other kinds of locks also need.
const KINDS: [(&str, &[&str]); 4] = [
    (
        "fair locks",
        &[
            "LINDEX KEY 0",
            "LPOP KEY",
            "LPOS KEY v",
            "LRANGE KEY 0 1",
            "LREM KEY 0 v",
            "RPUSH KEY v",
            "ZADD KEY XX 1 m",
            "ZINCRBY KEY x m",
            "ZRANGE KEY 0 1",
            "ZREM KEY m",
            "ZSCORE KEY m",
            "EXISTS redisson_lock_queue:{lockcore_probe}",
            "EXISTS redisson_lock_timeout:{lockcore_probe}",
        ],
    ),
    ("read-write locks", &["HEXISTS KEY f", "HLEN KEY", "ZREMRANGEBYSCORE KEY 0 1"]),
    (
        "semaphores and conditions",
        &["HKEYS KEY", "INCRBY KEY x", "PERSIST KEY", "ZCARD KEY", "ZCOUNT KEY 0 1"],
    ),
    ("latches", &["DECR KEY"]),
];

/// The commands that a connection needs, which a script cannot try without effect.
const OF_CONNECTION: [&str; 3] =
    ["EVALSHA 0 1 KEY", "SUBSCRIBE redisson_lock__channel:{lockcore_probe}", "UNSUBSCRIBE x"];

pub(super) async fn examine(
    session: &mut Session,
    scope: Scope<'_>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    let key = probe_key(scope);
    let needed: Vec<&str> = NEEDED.into_iter().chain(OF_CONNECTION).collect();
    let errors = match check(session, &needed, &key).await? {
        Ok(errors) => errors,
        Err(refused) => {
            diagnosis.add(no_scripts(session.address(), &refused));
            return Ok(());
        }
    };
    let missing = missing(&needed, &errors);
    if !missing.is_empty() {
        let seen = format!("{} refuses {}", session.address(), missing.join(", "));
        diagnosis.add(
            Finding::new("rights", Severity::Problem, seen)
                .because("without this, no lock can be acquired, released or waited for")
                .to_do(GRANT),
        );
    }
    for (kind, commands) in KINDS {
        let Ok(errors) = check(session, commands, &key).await? else { continue };
        let missing = self::missing(commands, &errors);
        if !missing.is_empty() {
            let seen = format!("{} refuses {}", session.address(), missing.join(", "));
            diagnosis.add(
                Finding::new("rights-of-kind", Severity::Advice, seen)
                    .because(format!("without this, {kind} do not work"))
                    .to_do(format!("{GRANT}; or do not use {kind}")),
            );
        }
    }
    Ok(())
}

const GRANT: &str = "grant the rights that the documentation of lockcore-redis lists under `Access \
                     rights`, and undo rename-command";

fn no_scripts(address: &str, refused: &BackendError) -> Finding {
    let (id, what) = match refused.kind() {
        BackendErrorKind::Permission => ("rights", "the right to run scripts"),
        _ => ("scripts", "scripts"),
    };
    let source =
        std::error::Error::source(refused).map_or(refused.to_string(), ToString::to_string);
    Finding::new(id, Severity::Problem, format!("{address} refuses EVAL: {source}"))
        .because(format!("without {what}, no lock can be acquired"))
        .to_do(GRANT)
}

/// A key that belongs to no lock; on a cluster, in a slot of the node.
pub(super) fn probe_key(scope: Scope<'_>) -> String {
    let key = |number: u32| format!("lockcore_probe:{{{}{number}}}", scope.key_prefix);
    let is_there = |key: &String| {
        scope.slots.is_none_or(|(first, last)| (first..=last).contains(&slot_of(key)))
    };
    // A single slot takes 16,384 attempts on average.
    (0..1_000_000).map(key).find(is_there).unwrap_or_else(|| key(0))
}

/// Asks which of the commands the user may run: for each the error, or an empty text. The inner
/// error is that of running a script at all.
async fn check(
    session: &mut Session,
    commands: &[&str],
    key: &str,
) -> Result<Result<Vec<String>, BackendError>, BackendError> {
    let asked = script(ASKED, commands, key);
    match session.ask::<Option<Vec<String>>>(&asked, "EVAL").await? {
        Ok(Some(errors)) => Ok(Ok(errors)),
        Ok(None) => {
            // Commands that a script cannot try without effect are left out.
            let tried = commands.iter().filter(|command| !OF_CONNECTION.contains(command));
            let tried: Vec<&str> = tried.copied().collect();
            session.ask(&script(TRIED, &tried, key), "EVAL").await
        }
        Err(refused) => Ok(Err(refused)),
    }
}

fn script(source: &str, commands: &[&str], key: &str) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(source).arg(1).arg(key);
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        call.arg(words.len());
        for word in words {
            call.arg(if word == KEY { key } else { word });
        }
    }
    call
}

/// The commands that the user may not run, or that the server does not have.
fn missing(commands: &[&str], errors: &[String]) -> Vec<String> {
    let refused = commands.iter().zip(errors).filter(|(_, error)| is_refusal(error));
    refused
        .map(|(command, error)| {
            let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
            let name = name.to_ascii_lowercase();
            let what = match rest.split(' ').next().unwrap_or_default() {
                word if word.contains("{lockcore_probe}") => {
                    format!("{name} with {}*", word.split('{').next().unwrap_or_default())
                }
                _ => name,
            };
            match is_unknown(error) {
                true => format!("{what} (no such command)"),
                false => what,
            }
        })
        .collect()
}

fn is_unknown(error: &str) -> bool {
    error.to_ascii_lowercase().contains("unknown") && error.contains("ommand")
}

fn is_refusal(error: &str) -> bool {
    !error.is_empty()
        && (is_unknown(error) || error::of_text(error).kind() == BackendErrorKind::Permission)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_are_missing_rights() {
        let commands = [
            "HSET KEY f v f",
            "RPUSH KEY v",
            "DECR KEY",
            "GET redisson_lock_token:{lockcore_probe}",
        ];
        let errors = [
            "ERR wrong number of arguments for 'hset' command",
            "@user_script: 1: Unknown Redis command called from Lua script",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOPERM",
        ];
        let missing = missing(&commands, &errors.map(str::to_owned));
        assert_eq!(missing, ["rpush (no such command)", "get with redisson_lock_token:*"]);
        assert!(is_refusal(
            "ERR The user executing the script can't run this command or subcommand"
        ));
        assert!(!is_refusal("READONLY You can't write against a read only replica."));
    }

    #[test]
    fn the_key_of_the_probe_is_in_a_slot_of_the_node() {
        for slots in [(0, 5460), (16_383, 16_383), (7, 7)] {
            let scope = Scope { slots: Some(slots), key_prefix: "app:", ..Scope::default() };
            let key = probe_key(scope);
            assert!((slots.0..=slots.1).contains(&slot_of(&key)), "{key}");
        }
        assert_eq!(probe_key(Scope::default()), "lockcore_probe:{0}");
    }
}
