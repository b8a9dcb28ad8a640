//! The Sentinels of a primary.

use std::{collections::BTreeSet, sync::Arc};

use lockcore::{BackendError, Diagnosis, Finding, Severity};
use redis::Value;

use crate::{error, sentinel::SentinelGroup};

/// With fewer, the loss of one leaves no majority.
const ENOUGH: usize = 3;
/// The advice about a Sentinel that is away.
const REMOVE: &str = "start it; only if it never comes back, use SENTINEL RESET on each of the \
                      others, one after the other with 30 s between; not while the primary or a \
                      replica is down, nor during a failover: a reset forgets them as well";

/// Asks each Sentinel.
///
/// # Errors
/// An error if none of them knows the primary.
pub(super) async fn examine(
    group: &Arc<SentinelGroup>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    // Teaches the group the other Sentinels as well.
    let _ = group.ask().await?;
    let addresses = group.addresses();
    if addresses.len() < ENOUGH {
        let seen = format!("{} Sentinels watch {}", addresses.len(), group.name());
        diagnosis.add(
            Finding::new("sentinels-few", Severity::Advice, seen)
                .because("a failover needs a majority of them, which the loss of one takes away")
                .to_do("run three Sentinels, on three hosts"),
        );
    }
    let mut primaries = BTreeSet::new();
    for address in &addresses {
        let mut connection = match group.connect_to(address).await {
            Ok(connection) => connection,
            Err(error) => {
                diagnosis.add(
                    super::unreachable(&format!("the Sentinel at {address}"), &error)
                        .because("the others may be too few for a failover")
                        .to_do(REMOVE),
                );
                continue;
            }
        };
        let mut asking = redis::pipe();
        asking.cmd("SENTINEL").arg("CKQUORUM").arg(group.name());
        asking.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(group.name());
        let answers = connection.send_packed_commands(&asking, 0, 2).await;
        let Ok([quorum, primary]) = answers.map(<[Value; 2]>::try_from).unwrap_or(Err(Vec::new()))
        else {
            continue;
        };
        if let Err(refused) = quorum.extract_error() {
            diagnosis
                .add(without_quorum(address, &error::of_request(refused, "SENTINEL CKQUORUM")));
        }
        if let Ok([host, port]) = redis::from_redis_value::<Vec<String>>(primary)
            .map_or(Err(Vec::new()), <[String; 2]>::try_from)
        {
            primaries.insert(format!("{host}:{port}"));
        }
    }
    if primaries.len() > 1 {
        let listed: Vec<String> = primaries.into_iter().collect();
        let seen = format!("the Sentinels name different primaries: {}", listed.join(", "));
        diagnosis.add(
            Finding::new("sentinels-disagree", Severity::Problem, seen)
                .because("clients may acquire the same lock at both of them")
                .to_do("wait for a failover under way; else compare SENTINEL MASTER on each"),
        );
    }
    Ok(())
}

fn without_quorum(address: &str, refused: &BackendError) -> Finding {
    let text = std::error::Error::source(refused).map_or(refused.to_string(), ToString::to_string);
    if text.contains("QUORUM") {
        let seen = format!("the Sentinel at {address} says {text}");
        return Finding::new("sentinel-quorum", Severity::Problem, seen)
            .because("if the primary fails, no replica takes over, and no lock can be acquired")
            .to_do("bring the missing Sentinels back, or set a quorum that they can reach");
    }
    let seen = format!("the Sentinel at {address} refuses SENTINEL CKQUORUM");
    Finding::new("sentinel-quorum", Severity::Unknown, seen)
        .because("it is unknown whether a failover is possible")
        .to_do("grant +sentinel|ckquorum")
}
