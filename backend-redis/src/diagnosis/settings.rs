//! Judges a server by its report about itself.

use std::collections::HashMap;

use lockcore::{BackendError, Diagnosis, Finding, Severity};

use super::{Scope, facts::Facts, session::Session};

/// Percent of the memory limit.
const FULL: u64 = 90;
const NEARLY_FULL: u64 = 75;
/// Percent of the client limit.
const MOST_CLIENTS: u64 = 90;
/// The most seconds of silence of a replica. Normally, replicas report every second.
const MOST_LAG: u64 = 10;
/// The smallest output buffer in bytes. It is enough to wake a thousand waiters at once.
const LEAST_BUFFER: u64 = 1 << 20;
/// The oldest versions of Redis that work, and that lose nothing: on one server, and on a cluster.
const OLDEST: (u32, u32, u32) = (6, 0, 6);
const COMPLETE: (u32, u32, u32) = (6, 2, 0);
const COMPLETE_ON_CLUSTER: (u32, u32, u32) = (7, 0, 0);

/// Adds the findings from `INFO`.
pub(super) fn judge(facts: &Facts, address: &str, scope: Scope<'_>, diagnosis: &mut Diagnosis) {
    let findings = [
        role(facts, address, scope),
        loading(facts, address),
        version(facts, address, scope),
        eviction(facts, address),
        memory(facts, address),
        clients(facts, address),
        failed_writes(facts, address),
        behind(facts, address),
        no_replica(facts, address, scope),
    ];
    for finding in findings.into_iter().flatten() {
        diagnosis.add(finding);
    }
}

fn problem(id: &'static str, seen: String) -> Finding {
    Finding::new(id, Severity::Problem, seen)
}

fn advice(id: &'static str, seen: String) -> Finding {
    Finding::new(id, Severity::Advice, seen)
}

fn role(facts: &Facts, address: &str, scope: Scope<'_>) -> Option<Finding> {
    if scope.may_be_replica || !facts.is_replica() {
        return None;
    }
    let primary = format!("{}:{}", facts.text("master_host"), facts.text("master_port"));
    let found = problem("replica", format!("{address} is a replica of {primary}"))
        .because("a replica refuses writes, and what it shows may be out of date")
        .to_do("connect to the primary, or to the Sentinels or the cluster that name it");
    Some(found)
}

fn loading(facts: &Facts, address: &str) -> Option<Finding> {
    let found = problem("loading", format!("{address} is loading its data"))
        .because("it answers no request for a lock until that is done")
        .to_do("wait, and ask again");
    facts.is_loading().then_some(found)
}

fn version(facts: &Facts, address: &str, scope: Scope<'_>) -> Option<Finding> {
    let version @ (major, minor, patch) = facts.version()?;
    let seen = format!("{address} has version {major}.{minor}.{patch}");
    let complete = if scope.slots.is_some() { COMPLETE_ON_CLUSTER } else { COMPLETE };
    if version < OLDEST {
        let found = problem("version", seen)
            .because(
                "Redis before 6.0 has no RESP3, and before 6.0.6 no LPOS, which the backend needs",
            )
            .to_do("upgrade to Redis 7.0 or Valkey 7.2 at least");
        Some(found)
    } else if version < complete {
        let lost = match scope.slots {
            Some(_) => "before 7.0, each message to a waiter goes through all nodes of a cluster",
            None => {
                "before 6.2, users cannot be limited to channels, and holds of many permits cost \
                 the server more"
            }
        };
        Some(advice("version", seen).because(lost).to_do("upgrade to Redis 7.0 or Valkey 7.2"))
    } else {
        None
    }
}

fn eviction(facts: &Facts, address: &str) -> Option<Finding> {
    let policy = facts.text("maxmemory_policy");
    if policy.is_empty() || policy == "noeviction" {
        return None;
    }
    let is_limited = facts.number("maxmemory").unwrap_or(0) > 0;
    let seen = format!("{address} has maxmemory-policy {policy}");
    let found = match is_limited {
        true => problem("eviction", seen)
            .because("when the memory is full, it deletes locks that are held"),
        false => advice("eviction", seen + " without maxmemory")
            .because("as soon as maxmemory is set, it deletes locks that are held"),
    };
    let to_do = "set maxmemory-policy to noeviction; use another server for caches";
    Some(found.to_do(to_do))
}

fn memory(facts: &Facts, address: &str) -> Option<Finding> {
    let (used, most) = (facts.number("used_memory")?, facts.number("maxmemory")?);
    if most == 0 {
        return None;
    }
    let percent = used.saturating_mul(100) / most;
    let seen = format!("{address} uses {percent} % of maxmemory ({used} of {most} bytes)");
    let severity = match percent {
        FULL.. => Severity::Problem,
        NEARLY_FULL.. => Severity::Advice,
        _ => return None,
    };
    let found = Finding::new("memory", severity, seen)
        .because("a full server that evicts nothing refuses each new lock")
        .to_do("find what fills it (redis-cli --memkeys), or raise maxmemory");
    Some(found)
}

fn clients(facts: &Facts, address: &str) -> Option<Finding> {
    let (now, most) = (facts.number("connected_clients")?, facts.number("maxclients")?);
    if now.saturating_mul(100) < most.saturating_mul(MOST_CLIENTS) {
        return None;
    }
    let found = problem("clients", format!("{address} has {now} of at most {most} clients"))
        .because("further clients are refused, also those that reconnect to renew their locks")
        .to_do("find who leaves connections open (CLIENT LIST), or raise maxclients");
    Some(found)
}

/// Finds failed writes to the disk, after which the server refuses writes.
fn failed_writes(facts: &Facts, address: &str) -> Option<Finding> {
    let failed = [
        ("rdb_last_bgsave_status", "the last snapshot"),
        ("aof_last_write_status", "the last write to the append-only file"),
        ("aof_last_bgrewrite_status", "the last rewrite of the append-only file"),
    ];
    let failed: Vec<_> = failed
        .into_iter()
        .filter(|(field, _)| facts.text(field) == "err")
        .map(|(_, what)| what)
        .collect();
    if failed.is_empty() {
        return None;
    }
    let seen = format!("at {address}, {} failed", failed.join(" and "));
    let found = problem("persistence-failing", seen)
        .because("the server refuses writes, or loses locks when it restarts")
        .to_do("look into the server's log; the disk may be full");
    Some(found)
}

fn behind(facts: &Facts, address: &str) -> Option<Finding> {
    let all = facts.replicas();
    let late = all.iter().filter(|replica| !replica.is_online || replica.lag > MOST_LAG);
    let late: Vec<String> = late
        .map(|replica| match replica.is_online {
            true => format!("{} was last heard of {} s ago", replica.address, replica.lag),
            false => format!("{} is not in step yet", replica.address),
        })
        .collect();
    if late.is_empty() {
        return None;
    }
    let found =
        problem("replica-behind", format!("of the replicas of {address}, {}", late.join(", ")))
            .because("if it takes over, the locks that it has not received are lost")
            .to_do("find out why: its host, the network, or a limit of the output buffer");
    Some(found)
}

fn no_replica(facts: &Facts, address: &str, scope: Scope<'_>) -> Option<Finding> {
    let count = facts.number("connected_slaves").unwrap_or(0);
    if !scope.has_sentinels || facts.is_replica() || count > 0 {
        return None;
    }
    let found = problem("no-replica", format!("the primary at {address} has no replica"))
        .because("the Sentinels have nothing to replace it with")
        .to_do("start a replica (replicaof)");
    Some(found)
}

/// Adds the findings from `CONFIG GET`.
pub(super) async fn ask_for_configuration(
    session: &mut Session,
    facts: Option<&Facts>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    let address = session.address().to_owned();
    let mut settings = ServerSettings::default();
    for name in ["save", "appendfsync", "min-replicas-to-write", "timeout", PUBSUB_BUFFER] {
        match session.words::<HashMap<String, String>>(&["CONFIG", "GET", name]).await? {
            Ok(told) => settings.0.extend(told.into_values().map(|value| (name, value))),
            Err(_) => {
                diagnosis.add(without_configuration(facts, &address));
                break;
            }
        }
    }
    let is_replica = facts.is_some_and(Facts::is_replica);
    let findings = [
        persistence(facts, &settings, &address),
        replicas(facts, &settings, &address).filter(|_| !is_replica),
        idle_limit(&settings, &address),
        pubsub_buffer(&settings, &address),
    ];
    for finding in findings.into_iter().flatten() {
        diagnosis.add(finding);
    }
    Ok(())
}

const PUBSUB_BUFFER: &str = "client-output-buffer-limit";

/// The settings that the server reported.
#[derive(Debug, Default)]
struct ServerSettings(Vec<(&'static str, String)>);

impl ServerSettings {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

fn without_configuration(facts: Option<&Facts>, address: &str) -> Finding {
    let has_log = facts.is_some_and(|facts| facts.text("aof_enabled") == "1");
    let snapshots = if has_log { "" } else { "snapshots (save), " };
    Finding::new("config", Severity::Unknown, format!("{address} refuses CONFIG GET"))
        .because(format!(
            "{snapshots}min-replicas-to-write, timeout and the limit of the output buffer of \
         subscribers could not be looked at"
        ))
        .to_do(
            "grant the user +config|get, or look at these settings in the console of the service",
        )
}

fn persistence(facts: Option<&Facts>, settings: &ServerSettings, address: &str) -> Option<Finding> {
    let has_log = facts?.text("aof_enabled") == "1";
    let tokens = "fencing tokens go on from the server's clock";
    if has_log {
        let found = advice("persistence", format!("{address} has appendfsync no"))
            .because("what the system had not written when the host fails is lost, locks included")
            .to_do("set appendfsync to everysec, or to always if a lock must not be lost");
        return (settings.text("appendfsync") == Some("no")).then_some(found);
    }
    let found = match settings.text("save")?.trim() {
        "" => problem("persistence", format!("{address} writes nothing to the disk"))
            .because(format!(
                "a restart loses all locks: the holders are told at their next renewal, and until \
                 then others are inside as well; {tokens}"
            ))
            .to_do("set appendonly to yes"),
        _ => advice("persistence", format!("{address} writes snapshots only"))
            .because(format!(
                "a restart loses all locks since the last snapshot, and others are inside as well \
                 until the holders are told; {tokens}"
            ))
            .to_do("set appendonly to yes"),
    };
    Some(found)
}

fn replicas(facts: Option<&Facts>, settings: &ServerSettings, address: &str) -> Option<Finding> {
    let facts = facts?;
    let connected = facts.number("connected_slaves").unwrap_or(0);
    // The field exists only if a number is set.
    let good = facts.number("min_slaves_good_slaves");
    let wanted = settings.number("min-replicas-to-write").or(good.map(|_| 1))?;
    let good = good.unwrap_or(connected);
    if wanted > good {
        let seen =
            format!("{address} has {good} replicas in step, and min-replicas-to-write {wanted}");
        let found = problem("replicas-missing", seen)
            .because("it refuses all writes, and so each lock and each renewal")
            .to_do("bring the replicas back, or lower min-replicas-to-write");
        return Some(found);
    }
    if wanted > 0 || connected == 0 {
        return None;
    }
    let seen = format!("{address} has {connected} replicas, and min-replicas-to-write 0");
    let found = advice("replicas-not-required", seen)
        .because(
            "a primary that is cut off from its replicas goes on granting locks that another \
             one grants as well after the failover",
        )
        .to_do("set min-replicas-to-write to 1, and min-replicas-max-lag to 10 or less");
    Some(found)
}

fn idle_limit(settings: &ServerSettings, address: &str) -> Option<Finding> {
    let seconds = settings.number("timeout").filter(|seconds| (1..60).contains(seconds))?;
    let found = advice("timeout", format!("{address} has timeout {seconds}"))
        .because(
            "it ends connections that were idle for so many seconds, and the next lock waits for \
             a new one",
        )
        .to_do("set timeout to 0; tcp-keepalive finds clients that are gone");
    Some(found)
}

fn pubsub_buffer(settings: &ServerSettings, address: &str) -> Option<Finding> {
    let mut words = settings.text(PUBSUB_BUFFER)?.split_whitespace().skip_while(|w| *w != "pubsub");
    let limits: Vec<u64> = words.by_ref().skip(1).take(2).filter_map(|w| w.parse().ok()).collect();
    let least = limits.iter().copied().filter(|limit| *limit > 0).min()?;
    if least >= LEAST_BUFFER {
        return None;
    }
    let seen = format!("{address} ends the connection of a subscriber with {least} unread bytes");
    let found = problem("pubsub-buffer", seen)
        .because(
            "when many locks are released at once, the connection for wake-ups breaks, and all \
             waiters of the client ask at the same time",
        )
        .to_do("set client-output-buffer-limit to \"pubsub 32mb 8mb 60\", its default");
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory:1000\r\n\
        used_memory:100\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nmaxclients:100\r\n\
        connected_clients:2\r\nrdb_last_bgsave_status:ok\r\nconnected_slaves:0\r\n";

    /// The findings of `INFO` with lines in front, which count, and settings.
    fn found(lines: &str, settings: &[(&'static str, &str)]) -> Vec<(&'static str, Severity)> {
        found_in(lines, settings, Scope::default())
    }

    fn found_in(
        lines: &str,
        settings: &[(&'static str, &str)],
        scope: Scope<'_>,
    ) -> Vec<(&'static str, Severity)> {
        let facts = Facts::parse(&format!("{SOUND}{lines}"));
        let mut diagnosis = Diagnosis::new();
        judge(&facts, "host:1", scope, &mut diagnosis);
        let settings = settings.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let settings = ServerSettings(settings.collect());
        let told = [
            persistence(Some(&facts), &settings, "host:1"),
            replicas(Some(&facts), &settings, "host:1"),
            idle_limit(&settings, "host:1"),
            pubsub_buffer(&settings, "host:1"),
        ];
        told.into_iter().flatten().for_each(|finding| diagnosis.add(finding));
        for finding in diagnosis.findings() {
            assert!(finding.seen().contains("host:1"), "{finding}");
            assert!(!finding.reason().is_empty() && !finding.advice().is_empty(), "{finding}");
        }
        diagnosis.findings().iter().map(|finding| (finding.id(), finding.severity())).collect()
    }

    #[test]
    fn a_sound_server_is_left_alone() {
        let settings = [
            ("save", ""),
            ("appendfsync", "everysec"),
            ("min-replicas-to-write", "0"),
            ("timeout", "0"),
            (PUBSUB_BUFFER, "normal 0 0 0 slave 1 1 1 pubsub 33554432 8388608 60"),
        ];
        assert_eq!(found("", &settings), []);
        assert_eq!(found("", &[]), [], "nothing is made up");
    }

    #[test]
    fn what_info_says_is_judged() {
        use Severity::{Advice, Problem};
        for (lines, id, severity) in [
            ("redis_version:5.0.14", "version", Problem),
            ("redis_version:6.0.16", "version", Advice),
            ("role:slave", "replica", Problem),
            ("loading:1", "loading", Problem),
            ("maxmemory_policy:volatile-ttl", "eviction", Problem),
            ("maxmemory:0\r\nmaxmemory_policy:allkeys-lru", "eviction", Advice),
            ("used_memory:1200", "memory", Problem),
            ("used_memory:800", "memory", Advice),
            ("connected_clients:95", "clients", Problem),
            ("aof_last_write_status:err", "persistence-failing", Problem),
            (
                "slave0:ip=a,port=1,state=online,offset=1,lag=30\r\nconnected_slaves:1",
                "replica-behind",
                Problem,
            ),
            (
                "slave0:ip=a,port=1,state=wait_bgsave,offset=1,lag=0\r\nconnected_slaves:1",
                "replica-behind",
                Problem,
            ),
            ("min_slaves_good_slaves:0", "replicas-missing", Problem),
        ] {
            assert_eq!(found(lines, &[]), [(id, severity)], "{lines}");
        }
    }

    #[test]
    fn what_the_deployment_is_makes_a_difference() {
        let cluster = Scope { slots: Some((0, 9)), ..Scope::default() };
        assert_eq!(found_in("redis_version:6.2.1", &[], cluster), [("version", Severity::Advice)]);
        let replica = Scope { may_be_replica: true, ..Scope::default() };
        assert_eq!(found_in("role:slave", &[], replica), []);
        let sentinels = Scope { has_sentinels: true, ..Scope::default() };
        assert_eq!(found_in("", &[], sentinels), [("no-replica", Severity::Problem)]);
    }

    #[test]
    fn the_configuration_is_judged() {
        use Severity::{Advice, Problem};
        let one = "slave0:ip=a,port=1,state=online,offset=1,lag=0\r\nconnected_slaves:1";
        let good = format!("{one}\r\nmin_slaves_good_slaves:1");
        for (lines, name, value, expected) in [
            ("aof_enabled:0", "save", "", Some(("persistence", Problem))),
            ("aof_enabled:0", "save", "3600 1", Some(("persistence", Advice))),
            ("", "appendfsync", "no", Some(("persistence", Advice))),
            ("", "min-replicas-to-write", "1", Some(("replicas-missing", Problem))),
            (one, "min-replicas-to-write", "0", Some(("replicas-not-required", Advice))),
            (&good, "min-replicas-to-write", "1", None),
            (&good, "min-replicas-to-write", "2", Some(("replicas-missing", Problem))),
            ("", "timeout", "5", Some(("timeout", Advice))),
            ("", "timeout", "600", None),
            ("", PUBSUB_BUFFER, "pubsub 1024 512 60", Some(("pubsub-buffer", Problem))),
            ("", PUBSUB_BUFFER, "pubsub 0 65536 60", Some(("pubsub-buffer", Problem))),
            ("", PUBSUB_BUFFER, "pubsub 0 0 0", None),
        ] {
            let found = found(lines, &[(name, value)]);
            assert_eq!(found, Vec::from_iter(expected), "{lines} {name} {value}");
        }
    }
}
